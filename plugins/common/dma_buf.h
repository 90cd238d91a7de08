// The DMA-BUF of GPU memory, asked of the CUDA driver if the process has loaded it; this plugin never loads it itself.
#pragma once

#include <cstdint>

#include "common/unique_fd.h"

namespace mk::plugin {

struct DmaBuf {
  UniqueFd fd;          // empty: there is none
  uint64_t offset = 0;  // of the memory in it
  const char* why = "";
};

DmaBuf exportDmaBuf(void* address, uint64_t bytes);

}  // namespace mk::plugin
