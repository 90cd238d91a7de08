// See work.h.
#include "cuda/work.h"

#include <algorithm>
#include <cstdio>

namespace mk::perf {
namespace {

std::string sizeText(double bytes) {
  char text[32];
  const bool large = bytes >= 0x1p30;
  snprintf(text, sizeof(text), "%.1f %s", bytes / (large ? 0x1p30 : 0x1p20), large ? "GiB" : "MiB");
  return text;
}

int64_t freeBytes(const Gpu& gpu) {
  size_t free = 0, total = 0;
  gpu.cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

// Empty if every rank has room; the same on all ranks.
std::string whyNoRoom(const Gpu& gpu, int64_t needed) {
  const uint64_t most = gpu.world.max(static_cast<uint64_t>(std::max<int64_t>(needed, 0)));
  const uint64_t least = gpu.world.min(static_cast<uint64_t>(freeBytes(gpu)));
  if (static_cast<double>(most) <= 0.95 * static_cast<double>(least)) return "";
  return "needs " + sizeText(static_cast<double>(most)) + " more on each GPU, " + sizeText(static_cast<double>(least)) +
         " are free";
}

}  // namespace

void Gpu::sync(const std::string& what) const {
  cuda(cudaStreamSynchronize(stream), what.c_str());
  session.requireAsync(what);
  alone.requireAsync(what);
}

const char* Work::nameOf(Kind kind) {
  constexpr const char* names[kinds] = {"fused", "ours alone", "cuBLAS", "cuBLAS + NCCL"};
  return names[kind];
}

std::unique_ptr<Work> Work::make(const Gpu& gpu, const Shape& shape) {
  return gpu.options.operation == Operation::allGatherGemm ? makeGatherWork(gpu, shape) : makeSumWork(gpu, shape);
}

void Work::allocateResult(Session& session, int64_t bytes, bool window, Result* result) {
  const auto slot = static_cast<size_t>(slotBytes(bytes));
  result->session = &session;
  result->bytes = bytes;
  if (window) {
    session.require(mkMemAlloc(&result->memory, slot), "mkMemAlloc");
    session.require(mkCommWindowRegister(session.comm(), result->memory, slot, &result->window),
                    "mkCommWindowRegister");
  } else {
    gpu_.cuda(cudaMalloc(&result->memory, slot), "cudaMalloc");
  }
  gpu_.cuda(cudaMemsetAsync(result->memory, kGuardByte, slot, gpu_.stream), "cudaMemsetAsync");
}

void Work::freeResult(Result* result) {
  if (!result->memory) return;
  if (result->window) {
    result->session->require(mkCommWindowDeregister(result->session->comm(), result->window), "mkCommWindowDeregister");
    result->session->require(mkMemFree(result->memory), "mkMemFree");
  } else {
    gpu_.cuda(cudaFree(result->memory), "cudaFree");
  }
  *result = Result();
}

std::string Work::allocate(Row* row) {
  const Options& o = options_;
  if (shape_.m == 0 || shape_.n == 0) return "nothing to time in an empty result";
  const int64_t k = kOfB();
  const ProductData sample = data(0);
  std::string why = whyNoRoom(
      gpu_, memoryBytes() + shape_.n * (k * inBytes() + outBytes()) + Verifier::bytes(o, sample, cRows(), shape_.n));
  if (!why.empty()) return why;
  b_ = room(shape_.n * k * inBytes());
  if (o.bias) bias_ = room(shape_.n * outBytes());
  verifier_ = std::make_unique<Verifier>(world_, o, gpu_.run, sample, cRows(), shape_.n, gpu_.stream);
  allocateOperands();

  Row alone;
  alone.m = shape_.m;
  choose(row, &alone);
  mkCommInfo_t comm;
  MK_INIT(&comm, MK_ID_COMM_INFO);
  gpu_.session.require(mkCommQuery(gpu_.session.comm(), &comm), "mkCommQuery");
  const int64_t growth = static_cast<int64_t>(row->workspaceBytes) - static_cast<int64_t>(comm.heapBytes);
  why = whyNoRoom(gpu_, growth + static_cast<int64_t>(alone.workspaceBytes));
  if (!why.empty()) return why;
  // Whoever has captured launches may reserve on an idle stream only.
  gpu_.cuda(cudaStreamSynchronize(gpu_.stream), "cudaStreamSynchronize");
  gpu_.session.reserve(*row);
  gpu_.alone.reserve(alone);
  fillNormal(o.in, b_.get(), shape_.n * k, seedOfB(world_.rank()), gpu_.stream);
  if (o.bias) fillNormal(o.out, bias_.get(), shape_.n, seedOf(Role::bias, shape_.m, 0, owner()), gpu_.stream);
  return "";
}

void Work::chooseSplit(Row* row) {
  Row alone;
  alone.m = shape_.m;
  choose(row, &alone);
}

void Work::release() {
  freeResult(&fused_);
  freeResult(&plain_);
  releaseOperands();
  verifier_.reset();
  b_.reset();
  bias_.reset();
}

void Work::refill() {
  for (int set = 0; set < kSets; ++set) {
    fillOf_[set] = ++fill_;
    fillA(set);
  }
  gpu_.cuda(cudaGetLastError(), "filling the inputs");
}

bool Work::measured(Kind kind) const {
  if (kind == blas) return gpu_.blas != nullptr;
  if (kind == unfused) return gpu_.blas && gpu_.nccl && gpu_.nccl->usable();
  return true;
}

void Work::launch(Kind kind, int set) {
  switch (kind) {
    case fused:
    case ours:
      (kind == fused ? gpu_.session : gpu_.alone).require(enqueue(kind, set), nameOf(kind));
      break;
    case blas:
      multiply(set, options_.beta);
      break;
    default:
      launchUnfused(set);
  }
}

void Work::guard(const Result& result) {
  const int64_t behind = slotBytes(result.bytes) - kGuardBytes - result.bytes;
  gpu_.cuda(cudaMemsetAsync(result.memory, kGuardByte, kGuardBytes, gpu_.stream), "cudaMemsetAsync");
  gpu_.cuda(cudaMemsetAsync(result.data() + result.bytes, kGuardByte, static_cast<size_t>(behind), gpu_.stream),
            "cudaMemsetAsync");
}

void Work::poisonResult() {
  guard(fused_);
  if (options_.beta != 0) {
    fillNormal(options_.out, fused_.data(), cRows() * shape_.n, seedOf(Role::oldC, shape_.m, 0, owner()), gpu_.stream);
  } else {
    poison(options_.out, fused_.data(), cRows() * shape_.n, gpu_.stream);
  }
}

bool Work::damaged(const Result& result) {
  const int64_t behind = slotBytes(result.bytes) - kGuardBytes - result.bytes;
  return verifier_->changed(result.memory, kGuardBytes, kGuardByte) != 0 ||
         verifier_->changed(result.data() + result.bytes, behind, kGuardByte) != 0;
}

void Work::judge(int set, Row* row) {
  row->outOfBounds += world_.sum(damaged(fused_));
  verifier_->check(fused_.data(), data(set), Verifier::Route::fused, &row->check);
  judgeMore(set, row);
  row->checked = true;
  row->compared = shared() != nullptr;
  row->checkedRows = checkedRows();
}

void Work::judgeUnfused(int set, Row* row) {
  CheckResult result;
  verifier_->check(unfusedResult(), data(set), Verifier::Route::unfused, &result);
  row->unfusedWrong = result.wrong;
}

void Work::corrupt() {
  const auto flip = [&](char* at, int bit) {
    char value = 0;
    gpu_.cuda(cudaMemcpy(&value, at, 1, cudaMemcpyDeviceToHost), "cudaMemcpy");
    value = static_cast<char>(value ^ bit);
    gpu_.cuda(cudaMemcpy(at, &value, 1, cudaMemcpyHostToDevice), "cudaMemcpy");
  };
  char* const middle = fused_.data() + (cRows() / 2 * shape_.n + shape_.n / 2) * outBytes();
  switch (options_.corrupt) {
    case Corrupt::element:
      if (fused_.bytes) flip(middle + outBytes() - 1, 0x40);  // the exponent's highest bit
      break;
    case Corrupt::rank:
      if (const Result* const all = shared(); all && world_.rank() == world_.size() - 1) {
        flip(all->data() + all->bytes / 2, 1);
      }
      break;
    case Corrupt::zero:
      gpu_.cuda(cudaMemset(fused_.data(), 0, static_cast<size_t>(fused_.bytes)), "cudaMemset");
      break;
    case Corrupt::guard:
      flip(fused_.data() + fused_.bytes, 1);
      break;
    case Corrupt::bytes:
    case Corrupt::nothing:
      break;
  }
}

}  // namespace mk::perf
