// The little that this plugin asks of the CUDA driver, if the process has loaded it; it never loads it itself.
#pragma once

namespace mk::plugin::efa {

bool cudaDriverLoaded();

// Ordinal of the device that `address` belongs to.  Throws Failure if the driver does not say.
int cudaDeviceOf(const void* address);

}  // namespace mk::plugin::efa
