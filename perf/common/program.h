// What the programs that run an operation have in common from main() on: arguments, the ranks' meeting, exit status.
#pragma once

#include <memory>

#include "options.h"
#include "report.h"
#include "session.h"
#include "world.h"

namespace mk::perf {

// One program.  The session is connected, and ended by the run.
struct Program {
  Operation operation = Operation::gemmAllReduce;
  // On the CPU platform.  The report is rank 0's, with its header printed; the others have none.
  void (*cpu)(World& world, const Options& options, Session& session, const RunInfo& run, Report* report) = nullptr;
  // On GPUs; makes the report on rank 0.  Null: not built, or not there yet.
  void (*gpu)(World& world, const Options& options, Session& session, const RunInfo& run,
              std::unique_ptr<Report>* report) = nullptr;
  // Before the communicator is made: chooses the rank's GPU and says which; false if there is none.  Null without `gpu`.
  bool (*chooseDevice)(World& world, const Options& options, std::string* device) = nullptr;
};

// The whole of main().
int runProgram(int argc, char** argv, const Program& program);

}  // namespace mk::perf
