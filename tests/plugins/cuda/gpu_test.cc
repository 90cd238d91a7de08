// The loopback transport between two GPUs: test_loopback_gpu [--fake LIBRARY] [PLUGIN].  Between threads and between
// processes: traffic checked byte for byte, the rate of 256 KiB chunks with their flags, free and at 50 GB/s, and all of it
// beside a kernel that fills the GPU.  Exits with 77 where there are no two GPUs.  --fake: with that driver, to prove that the
// program works; rates mean nothing then.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/gpu_traffic.h"
#include "cuda/gpu_watch.h"

namespace test {
namespace {

bool onFake = false;
int failures = 0;

void enterDevice(int rank) { CudaDevice::enter(rank); }

// In a process of its own: this one forks, and a driver that has been initialised does not survive that.
int countDevices() {
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    const char* why = nullptr;
    const int count = CudaDevice::count(&why);
    if (why != nullptr) std::printf("no GPU: %s\n", why);
    std::fflush(nullptr);
    _exit(count < 100 ? count : 100);
  }
  int status = 0;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

void attempt(const std::string& what, const Setup& setup, Mode mode, const std::function<void(Rank&)>& body) {
  const std::string name = what + (mode == Mode::threads ? ", threads" : ", processes");
  try {
    runWorld(setup, mode, 2, body);
    std::printf("ok   %s\n", name.c_str());
  } catch (const std::exception& failure) {
    ++failures;
    std::printf("FAIL %s: %s\n", name.c_str(), failure.what());
  }
  std::fflush(stdout);
}

void runAll(const std::string& plugin, Mode mode) {
  const auto setup = [&](const char* contract, Params params) {
    params["MKERNEL_LOOPBACK_CONTRACT"] = contract;
    return Setup{plugin, params, 20000, enterDevice};
  };
  const Params model = {{"MKERNEL_LOOPBACK_GBPS", "50"},
                        {"MKERNEL_LOOPBACK_LATENCY_US", "5"},
                        {"MKERNEL_LOOPBACK_JITTER_US", "20"},
                        {"MKERNEL_LOOPBACK_REORDER", "0.3"},
                        {"MKERNEL_LOOPBACK_REPEAT", "0.3"}};
  for (const char* contract : {"ordered", "completion"}) {
    attempt(std::string("traffic, ") + contract, setup(contract, {}), mode, gpuTraffic);
    attempt(std::string("traffic, ") + contract + ", adversarial", setup(contract, model), mode, gpuTraffic);
  }
  const size_t chunks = onFake ? 100 : 16384;
  // Without limit both endpoints must pass what the emulated card needs; with it neither may.
  const SpeedRun runs[] = {{"contiguous chunks", chunks, true, onFake ? 0.0 : 52, 0},
                           {"scattered chunks", chunks, false, onFake ? 0.0 : 52, 0}};
  const SpeedRun capped[] = {{"contiguous chunks, 50 GB/s", chunks, true, onFake ? 0.0 : 47, 50.5},
                             {"scattered chunks, 50 GB/s", chunks, false, onFake ? 0.0 : 47, 50.5}};
  for (const SpeedRun& run : runs)
    attempt(run.name, setup("ordered", {}), mode, [&](Rank& rank) { gpuSpeed(rank, run); });
  for (const SpeedRun& run : capped)
    attempt(run.name, setup("ordered", {{"MKERNEL_LOOPBACK_GBPS", "50"}}), mode,
            [&](Rank& rank) { gpuSpeed(rank, run); });
  if (onFake || !Watch::available()) {
    std::printf("not run: beside a kernel that fills the GPU (%s)\n", onFake ? "a fake driver" : "built without CUDA");
    return;
  }
  attempt("watched", setup("ordered", {}), mode, [](Rank& rank) { gpuWatched(rank, 4096); });
  attempt("watched, 50 GB/s", setup("ordered", {{"MKERNEL_LOOPBACK_GBPS", "50"}, {"MKERNEL_LOOPBACK_REPEAT", "0.2"}}),
          mode, [](Rank& rank) { gpuWatched(rank, 4096); });
}

int run(const std::vector<std::string>& arguments) {
  std::string plugin = MK_TEST_LOOPBACK;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--fake" && i + 1 < arguments.size()) {
      onFake = true;
      if (dlopen(arguments[++i].c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) continue;
      std::printf("FAIL %s\n", dlerror());
      return 1;
    }
    plugin = arguments[i];
  }
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);  // a first launch must not wait for a kernel that runs
  if (const int devices = countDevices(); devices < 2) {
    std::printf("SKIP: needs two GPUs; there are %d\n", devices);
    return 77;
  }
  runAll(plugin, Mode::processes);
  runAll(plugin, Mode::threads);
  std::printf("%d failed\n", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace test

int main(int argc, char** argv) {
  try {
    return test::run({argv + 1, argv + argc});
  } catch (const std::exception& failure) {
    std::printf("FAIL %s\n", failure.what());
    return 1;
  }
}
