// A build without CUDA.
#include "host/cuda.h"
#include "host/error.h"

namespace mk::cuda {

int buildVersion() { return 0; }
const char* buildArchs() { return ""; }
std::string unusable() { return "this build has no CUDA"; }

std::unique_ptr<Platform> makePlatform(const Settings&) {
  fail(mkErrorNotSupported, "platform is \"cuda\": %s; legal: \"cpu\"", unusable().c_str());
}
void* allocate(size_t) { fail(mkErrorNotSupported, "%s", unusable().c_str()); }
bool release(void*) { return false; }

}  // namespace mk::cuda
