// Windows over every kind of memory that a framework may pass: supported, or refused by its cause on every rank.
#include <cuda.h>

#include "gpu/device.h"
#include "process/crew.h"
#include "support/catch_compat.h"

using test::Case;
using test::Crew;
using test::cuda;
using test::expect;
using test::World;

namespace {

constexpr size_t kPiece = 2 << 20;

template <class F>
F driverCall(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status;
  cuda(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &status), name);
  return reinterpret_cast<F>(found);
}
void driver(CUresult e, const char* what) {
  if (e != CUDA_SUCCESS) throw std::string(what) + ": driver error " + std::to_string(static_cast<int>(e));
}

// As PyTorch's expandable segments: one range of addresses, memory in pieces.
struct Pieces {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  std::vector<CUmemGenericAllocationHandle> handles;
};
Pieces makePieces(size_t bytes, bool exportable) {
  int device = 0;
  cuda(cudaGetDevice(&device), "device");
  Pieces p;
  p.bytes = (bytes + kPiece - 1) / kPiece * kPiece;
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  prop.requestedHandleTypes = exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  driver(driverCall<decltype(&cuMemAddressReserve)>("cuMemAddressReserve")(&p.base, p.bytes, 0, 0, 0), "reserve");
  for (size_t at = 0; at < p.bytes; at += kPiece) {
    CUmemGenericAllocationHandle h = 0;
    driver(driverCall<decltype(&cuMemCreate)>("cuMemCreate")(&h, kPiece, &prop, 0), "create");
    driver(driverCall<decltype(&cuMemMap)>("cuMemMap")(p.base + at, kPiece, 0, h, 0), "map");
    p.handles.push_back(h);
  }
  CUmemAccessDesc access = {};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  driver(driverCall<decltype(&cuMemSetAccess)>("cuMemSetAccess")(p.base, p.bytes, &access, 1), "access");
  return p;
}

}  // namespace

MK_ROLE(windows) {
  mkComm_t comm = rank.join();
  const World world = rank.world();
  const auto run = [&](const std::string& name) {
    rank.attempt(name, [&] {
      for (uint64_t seed = 1; seed <= 2; ++seed) {
        Case c{.m = 1100, .n = 1040, .k = 128, .window = true};
        c.seed = seed;
        test::runCase(c, world, rank.rank(), comm);
      }
    });
  };
  run("mkMemAlloc");

  // A piece of a larger cudaMalloc, as a caching allocator gives it; not at its beginning.
  void* whole = nullptr;
  cuda(cudaMalloc(&whole, 64 << 20), "cudaMalloc");
  test::windowAllocate = [&](size_t) { return static_cast<char*>(whole) + (5 << 20) + 512; };
  test::windowRelease = [](void*) {};
  run("cudaMalloc");

  Pieces pieces = makePieces(16 << 20, true);
  test::windowAllocate = [&](size_t) { return reinterpret_cast<char*>(pieces.base) + kPiece / 2 + 256; };
  run("pieces");

  const auto refused = [&](const std::string& name, void* ptr, size_t bytes) {
    mkWindow_t window = nullptr;
    rank.call(name, [&] { return mkCommWindowRegister(comm, ptr, bytes, &window); });
  };
  const Pieces closed = makePieces(4 << 20, false);
  refused("not exportable", reinterpret_cast<void*>(closed.base), 4096);
  refused("past the end", static_cast<char*>(whole) + (63 << 20), 2 << 20);
  refused("past the pieces", reinterpret_cast<char*>(pieces.base) + 1024, pieces.bytes);
  void* pool = nullptr;
  cuda(cudaMallocAsync(&pool, 1 << 20, nullptr), "cudaMallocAsync");
  cuda(cudaStreamSynchronize(nullptr), "cudaMallocAsync");
  refused("pool", pool, 4096);
  void* managed = nullptr;
  cuda(cudaMallocManaged(&managed, 1 << 20), "cudaMallocManaged");
  refused("managed", managed, 4096);
  void* pinned = nullptr;
  cuda(cudaHostAlloc(&pinned, 1 << 20, 0), "cudaHostAlloc");
  refused("pinned", pinned, 4096);
  alignas(16) static char ordinary[4096];
  refused("ordinary", ordinary, sizeof(ordinary));
  if (test::oneGpu() == test::OneGpu::no) {
    void* other = nullptr;
    cuda(cudaSetDevice(1 - rank.rank()), "device");
    cuda(cudaMalloc(&other, 1 << 20), "cudaMalloc");
    cuda(cudaSetDevice(rank.rank()), "device");
    refused("other device", other, 4096);
  }
  // Of one rank alone: the others hear of it.
  refused("one rank", rank.rank() == 0 ? whole : pinned, 4096);

  test::windowAllocate = nullptr;
  test::windowRelease = nullptr;
  run("again");
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("memory of every kind is a window, or is refused by its cause", "[windows]") {
  MK_NEED_GPUS(2);
  Crew crew("windows", {1, 2}, {}, {}, Crew::Ranks::processes);
  const bool finished = crew.finish(60);
  INFO(crew.story());
  REQUIRE(finished);
  std::vector<std::pair<std::string, std::string>> causes = {{"not exportable", "expandable_segments"},
                                                             {"past the end", "past the end"},
                                                             {"past the pieces", "past the end"},
                                                             {"pool", "pool"},
                                                             {"managed", "managed"},
                                                             {"pinned", "host memory"},
                                                             {"ordinary", "not known to CUDA"},
                                                             {"one rank", "rank 1"}};
  if (test::oneGpu() == test::OneGpu::no) causes.emplace_back("other device", "of device");
  for (int r = 0; r < 2; ++r) {
    CHECK(crew.status(r) == 0);
    for (const char* name : {"mkMemAlloc", "cudaMalloc", "pieces", "again"}) MK_CHECK_NOTE(crew, r, name, 0);
    for (const auto& [name, word] : causes) {
      MK_CHECK_NOTE(crew, r, name, mkErrorNotRegistered);
      const std::string text = crew.note(r, name).text;
      INFO(text);
      CHECK(text.find(word) != std::string::npos);
    }
    MK_CHECK_NOTE(crew, r, "destroy", mkSuccess);
  }
}
