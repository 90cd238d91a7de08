// See dma_buf.h.
#include "common/dma_buf.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstring>

namespace mk::plugin {
namespace {

// Closed at once: the process's own use keeps the driver loaded.
void* driver() {
  void* const object = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (object != nullptr) dlclose(object);
  return object;
}

}  // namespace

DmaBuf exportDmaBuf(void* address, uint64_t bytes) {
  DmaBuf made;
  void* const object = driver();
  // cuMemGetHandleForAddressRange(handle, address, bytes, type, flags), since CUDA 11.7.
  void* const found = object != nullptr ? dlsym(object, "cuMemGetHandleForAddressRange") : nullptr;
  if (found == nullptr) {
    made.why = object == nullptr ? "no CUDA driver is loaded" : "the CUDA driver is older than 11.7";
    return made;
  }
  int (*handleFor)(void*, unsigned long long, size_t, int, unsigned long long) = nullptr;
  std::memcpy(&handleFor, &found, sizeof(handleFor));
  // Whole pages only.
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t start = reinterpret_cast<uint64_t>(address), first = start / page * page;
  const uint64_t whole = (start + bytes - first + page - 1) / page * page;
  constexpr int kDmaBufFd = 1;  // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
  int fd = -1;
  if (handleFor(&fd, first, whole, kDmaBufFd, 0) != 0 || fd < 0) {
    made.why = "the CUDA driver gives none";
    return made;
  }
  made.fd = UniqueFd(fd);
  made.offset = start - first;
  return made;
}

}  // namespace mk::plugin
