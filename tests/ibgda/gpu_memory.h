// Memory of GPUs, for the software network card to read and write: copies on a stream of its own, by the CUDA driver that the
// process has loaded.
#pragma once

#include "ibgda/soft_nic.h"

namespace test {

// Null: there is no driver, or this is no memory of a GPU.  The GPU's context is the calling thread's.
SoftNic::FarMemory* gpuMemoryAt(const void* address);

}  // namespace test
