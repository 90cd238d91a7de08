// The arguments of the operations that are a matrix product and an exchange: one form for all of them, their checks, and what
// of them must agree between ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "host/comm.h"
#include "mkernel.h"
#include "protocol/operands.h"
#include "sched/choice.h"
#include "sched/hash.h"
#include "sched/shards.h"

namespace mk {

// As read from the caller's structures.  What an operation does not have stays zero.
struct GemmArgs {
  int op = 0;             // MK_OP_...
  const char* name = "";  // of the exported function
  mkTensor_t a = {}, b = {}, c = {}, bias = {}, gathered = {};
  const float* alpha = nullptr;
  const float* beta = nullptr;
  uint32_t bLayout = 0, activation = 0, wireDtypePlus1 = 0, reserved0 = 0;
  const float* scaleA = nullptr;
  const float* scaleB = nullptr;
  std::optional<mkTune_t> tune;
};

const char* typeName(uint32_t dtype);

// A matrix argument after all checks of its own.
struct Matrix {
  char* data = nullptr;              // of this rank
  const mkWindow* window = nullptr;  // or none
  uint64_t offset = 0;               // in the window
  int64_t rows = 0, cols = 0;
  uint64_t stride = 0;  // elements
};

// How the rows of A and C of one rank relate to the M rows of the product.
enum class Rows {
  whole,   // both have all M
  shardC,  // A has M; C is this rank's shard of them
  shardA   // C has M; A is this rank's shard of them
};

// Arguments that are right on their own.
struct Gemm {
  uint64_t m = 0, n = 0;
  Matrix a, b, c;
  std::optional<Matrix> gathered;                // the whole A, as an output
  uint32_t in = 0, out = 0, wire = 0, bias = 0;  // mkDataType_t; bias: 1 + it, or 0
  protocol::GemmOperands operands;
  sched::GemmChoice choice;
};

// Throws Error naming the argument, its value and what is legal.
Gemm checkGemm(const Comm& comm, const GemmArgs& args, Rows rows);

// Adds what must agree between ranks and is not in the plan.  A matrix that other ranks reach by its window: addWindow() too.
void addGemm(sched::PlanHash* hash, const GemmArgs& args, const Gemm& gemm);
void addWindow(sched::PlanHash* hash, const Matrix& m);

// The same for errors that compare ranks: "mkGemmAllReduce(M=8, N=16, ..., tile 64x64", without the closing bracket.
// `c`: "ordinary memory", or which window.
std::string describeGemm(const GemmArgs& args, const Gemm& gemm, const std::string& c, uint32_t tileM, uint32_t tileN);
// "ordinary memory", or "window 1 at offset 0 with row stride 64".
std::string describePlace(const Matrix& m);

}  // namespace mk
