// From main() to the exit status; see program.h.
#include "program.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

namespace mk::perf {
namespace {

// What libraries read from the environment, before the first of them is used.
void setEnvironment(const Options& options) {
  if (!options.platform.empty()) setenv("MKERNEL_PLATFORM", options.platform.c_str(), 1);  // mkMemAlloc goes by it
  setenv("NCCL_NVLS_ENABLE", "0", 1);  // the comparison is without NVLink multicast
}

int runWorld(World& world, Options& options, const Program& program) {
  std::string device;
  if (program.chooseDevice != nullptr && program.chooseDevice(world, options, &device) && options.nodes > 1) {
    // Emulated nodes have a network that is as fast as a real one.
    if (options.transport.empty()) options.transport = "loopback";
    if (options.transport == "loopback") {
      setenv("MKERNEL_LOOPBACK_GBPS", std::to_string(options.nicGBps).c_str(), 0);
    }
  }
  if (options.platform == "cuda") options.setDefaults(true);
  if (options.limitSeconds) world.setLimit(options.limitSeconds);
  Session session(world, options);
  session.connect();
  const RunInfo run = session.describe(device);
  const bool gpu = run.platform == "cuda";
  const bool limited = options.limitSeconds != 0;
  options.setDefaults(gpu);
  if (!limited && options.limitSeconds) world.setLimit(options.limitSeconds);
  if (!gpu && (options.listed() || options.graph)) {
    world.die(exitUsage, "platform " + run.platform + ": --suite, --layers and -G time GPUs (--platform cuda)");
  }
  std::unique_ptr<Report> report;
  if (!gpu) {
    if (world.rank() == 0) {
      report = std::make_unique<Report>(options);
      report->header(run);
    }
    program.cpu(world, options, session, run, report.get());
  } else if (program.gpu != nullptr) {
    program.gpu(world, options, session, run, &report);
  } else {
    world.die(exitUsage, "platform cuda: this program, as it was built, drives --platform cpu alone");
  }
  // Only rank 0 has seen everything; the others wait for its verdict, so that all end with the same status.
  const bool good = world.all(report ? report->footer() : true);
  return good ? exitGood : exitWrong;
}

int runRanks(int argc, char** argv, const Program& program) {
  World world;
  Options options;
  try {
    options = parseOptions(argc, argv, world.size(), program.operation);
    if (options.help) {
      if (world.rank() == 0) printf("%s", helpText(program.operation).c_str());
      return exitGood;
    }
  } catch (const UsageError& error) {
    if (world.rank() == 0) fprintf(stderr, "%s: %s\n", programName(program.operation), error.what());
    return exitUsage;
  }
  setEnvironment(options);
  world.setDeadline(options.timeoutSeconds);
  try {
    return runWorld(world, options, program);
  } catch (const std::exception& error) {
    world.die(exitSystem, error.what());
  }
}

}  // namespace

int runProgram(int argc, char** argv, const Program& program) {
  int provided = 0;
  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) return exitSystem;
  const int code = runRanks(argc, argv, program);
  MPI_Finalize();
  return code;
}

}  // namespace mk::perf
