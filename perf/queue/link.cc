// A plugin and an endpoint between two ranks; see link.h.
#include "queue/link.h"

#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "mkernel.h"

namespace mk::perf {
namespace {

constexpr int kIdlePolls = 64;  // then the core is offered to others: the peer may need it

void hostLog(int level, const char*, int, const char* text) {
  if (level <= 1) fprintf(stderr, "mk_queue_perf: transport: %s\n", text);
}

const char* hostParam(const char* name) { return strncmp(name, "MKERNEL_", 8) == 0 ? getenv(name) : nullptr; }

constexpr mkTransportHost_t kHost = {
    sizeof(mkTransportHost_t), MK_TRANSPORT_ABI_MAJOR, MK_TRANSPORT_ABI_MINOR, 0, hostLog, hostParam};

// The file of a transport, looked for where the library does.
std::string findPlugin(const std::string& transport) {
  if (transport.find('/') != std::string::npos) return transport;
  const std::string file = "libmkernel-" + transport + ".so";
  const char* path = getenv("MKERNEL_PLUGIN_PATH");
  std::string rest = path != nullptr ? path : "";
  rest += (rest.empty() ? "" : ":") + std::string(MK_PLUGIN_DIR);
  std::string tried;
  while (!rest.empty()) {
    const size_t colon = rest.find(':');
    const std::string folder = rest.substr(0, colon);
    rest.erase(0, colon == std::string::npos ? colon : colon + 1);
    if (folder.empty()) continue;
    std::string found = folder;
    found += '/';
    found += file;
    if (access(found.c_str(), R_OK) == 0) return found;
    tried += (tried.empty() ? "" : ", ") + folder;
  }
  throw TransportError("--transport " + transport + ": no " + file + " in " + tried +
                       " (MKERNEL_PLUGIN_PATH names folders; the path of a file is legal too)");
}

}  // namespace

Plugin::Plugin(const std::string& transport) : path_(findPlugin(transport)) {
  object_ = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object_ == nullptr) throw TransportError(dlerror());
  try {
    take();
  } catch (...) {
    if (context_ != nullptr) table_->fini(context_);
    dlclose(object_);
    throw;
  }
}

void Plugin::take() {
  table_ = static_cast<const mkTransport_t*>(dlsym(object_, MK_TRANSPORT_SYMBOL));
  if (table_ == nullptr) throw TransportError(path_ + ": exports no " MK_TRANSPORT_SYMBOL);
  if (table_->abiMajor != MK_TRANSPORT_ABI_MAJOR || table_->structSize < offsetof(mkTransport_t, queueDescriptor)) {
    throw TransportError(path_ + ": table of interface " + std::to_string(table_->abiMajor) + "." +
                         std::to_string(table_->abiMinor) + ", " + std::to_string(table_->structSize) +
                         " bytes; needed are " + std::to_string(MK_TRANSPORT_ABI_MAJOR) + ".x and " +
                         std::to_string(offsetof(mkTransport_t, queueDescriptor)) + " bytes");
  }
  succeed(table_->init(&kHost, &context_), "init");
  properties_.structSize = sizeof(properties_);
  succeed(table_->properties(context_, &properties_), "properties");
  if (properties_.contract != MK_CONTRACT_ORDERED && properties_.contract != MK_CONTRACT_COMPLETION) {
    throw TransportError(path_ + ": contract " + std::to_string(properties_.contract) + " is not known");
  }
  if (properties_.maxBatch < 1 || properties_.maxBytes < 1) {
    throw TransportError(path_ + ": maxBatch or maxBytes is 0");
  }
}

Plugin::~Plugin() {
  table_->fini(context_);
  dlclose(object_);
}

std::string Plugin::deviceName(int device) const {
  int count = 0;
  succeed(table_->deviceCount(context_, &count), "deviceCount");
  if (device >= count) {
    throw TransportError("--device " + std::to_string(device) + ": " + table_->name + " has " + std::to_string(count) +
                         " devices here, counted from 0");
  }
  mkTransportDevice_t description = {};
  description.structSize = sizeof(description);
  succeed(table_->deviceInfo(context_, device, &description), "deviceInfo");
  return description.name;
}

void Plugin::succeed(int result, const char* what) const {
  if (result == mkSuccess) return;
  throw TransportError(path_ + ": " + what + ": result " + std::to_string(result) + ": " + table_->lastError());
}

SharedMemory::SharedMemory(size_t bytes) {
  memory_.structSize = sizeof(memory_);
  memory_.kind = MK_MEMORY_KIND_HOST;
  memory_.bytes = bytes;
  memory_.fd = memfd_create("mk_queue_perf", MFD_CLOEXEC);
  void* address = MAP_FAILED;
  if (memory_.fd >= 0 && ftruncate(memory_.fd, static_cast<off_t>(bytes)) == 0) {
    address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.fd, 0);
  }
  if (address == MAP_FAILED) {
    const int error = errno;
    if (memory_.fd >= 0) close(memory_.fd);
    throw std::runtime_error("no shared memory of " + std::to_string(bytes) + " bytes: " + strerror(error));
  }
  memory_.address = address;
}

SharedMemory::~SharedMemory() {
  munmap(memory_.address, memory_.bytes);
  close(memory_.fd);
}

Link::Link(World& world, const Plugin& plugin, int device, size_t bytes, uint32_t queues, int timeoutMs)
    : world_(world),
      plugin_(plugin),
      peer_(1 - world.rank()),
      queues_(queues),
      ordered_(plugin.ordered()),
      source_(bytes),
      received_(bytes),
      flags_(kSlots * sizeof(uint64_t)) {
  memset(flags_.data(), 0, kSlots * sizeof(uint64_t));
  try {
    open(device, timeoutMs);
  } catch (...) {
    if (endpoint_ != nullptr) plugin_.table().close(endpoint_);
    throw;
  }
}

Link::~Link() { plugin_.table().close(endpoint_); }

void Link::open(int device, int timeoutMs) {
  const mkTransport_t& table = plugin_.table();
  world_.phase("connecting");
  std::array<uint8_t, MK_TRANSPORT_ADDRESS_BYTES> address = {};
  plugin_.succeed(table.open(plugin_.context(), device, &endpoint_, address.data()), "open");
  const std::vector<char> all = world_.gather(address.data(), address.size());
  plugin_.succeed(
      table.connect(endpoint_, world_.size(), world_.rank(), reinterpret_cast<const uint8_t*>(all.data()), timeoutMs),
      "connect");
  world_.phase("registering memory");
  std::array<uint8_t, MK_TRANSPORT_KEY_BYTES> unused = {};
  sourceHandle_ = registerMemory(source_, unused.data());
  remote_ = share(received_, timeoutMs);
  remoteFlags_ = share(flags_, timeoutMs);
}

void* Link::registerMemory(const SharedMemory& memory, uint8_t* key) {
  void* handle = nullptr;
  plugin_.succeed(plugin_.table().registerMemory(endpoint_, &memory.description(), &handle, key), "registerMemory");
  return handle;
}

// Registers here and imports what the peer has registered.
void* Link::share(const SharedMemory& memory, int timeoutMs) {
  std::array<uint8_t, MK_TRANSPORT_KEY_BYTES> key = {};
  registerMemory(memory, key.data());
  const std::vector<char> keys = world_.gather(key.data(), key.size());
  const char* theirs = keys.data() + static_cast<size_t>(peer_) * key.size();
  void* remote = nullptr;
  plugin_.succeed(
      plugin_.table().importMemory(endpoint_, peer_, reinterpret_cast<const uint8_t*>(theirs), timeoutMs, &remote),
      "importMemory");
  return remote;
}

void Link::expect(uint32_t first, size_t count) {
  first_ = first;
  seen_.assign(count, 0);
}

bool Link::arrived(size_t index) const {
  if (!ordered_) return seen_[index] != 0;
  uint64_t& flag = reinterpret_cast<uint64_t*>(flags_.data())[index];
  return std::atomic_ref<uint64_t>(flag).load(std::memory_order_acquire) == first_ + index;
}

mkTransportWrite_t Link::write(size_t slot, size_t bytes, uint32_t number) const {
  mkTransportWrite_t write = {};
  write.source = source_.data() + slot * bytes;
  write.localMemory = sourceHandle_;
  write.remoteMemory = remote_;
  write.remoteOffset = slot * bytes;
  write.bytes = bytes;
  write.flagMemory = remoteFlags_;
  write.flagOffset = slot * sizeof(uint64_t);
  write.flagValue = number;
  write.immediate = number;
  write.queue = number % queues_;
  write.cookie = number;
  return write;
}

int Link::post(const mkTransportWrite_t* writes, int count) {
  int accepted = -1;
  plugin_.succeed(plugin_.table().post(endpoint_, peer_, writes, count, &accepted), "post");
  if (accepted < 0 || accepted > count) {
    throw TransportError("post of " + std::to_string(count) + " writes accepted " + std::to_string(accepted));
  }
  outstanding_ += accepted;
  return accepted;
}

void Link::poll() {
  std::array<mkTransportEvent_t, 64> events = {};
  int count = 0;
  plugin_.succeed(plugin_.table().poll(endpoint_, events.data(), static_cast<int>(events.size()), &count), "poll");
  if (count > 0) {
    idle_ = 0;
  } else if (++idle_ > kIdlePolls) {
    sched_yield();
  }
  for (int i = 0; i < count; ++i) {
    const mkTransportEvent_t& event = events[static_cast<size_t>(i)];
    if (event.kind == MK_EVENT_ERROR) {
      throw TransportError(plugin_.path() + ": the peer or the device has failed: " + plugin_.table().lastError());
    }
    if (event.kind == MK_EVENT_SENT) {
      plugin_.succeed(event.status, "completion of a write");
      --outstanding_;
    }
    if (event.kind != MK_EVENT_ARRIVED) continue;
    const uint32_t index = event.immediate - first_;
    if (event.immediate < first_) continue;  // repetition of an earlier one
    if (index >= seen_.size()) {
      throw TransportError("arrival of number " + std::to_string(event.immediate) + ", which nobody has sent");
    }
    seen_[index] = 1;
  }
}

void Link::postOne(const mkTransportWrite_t& write) {
  while (post(&write, 1) == 0) poll();
}

void Link::awaitArrival(size_t index) {
  while (!arrived(index)) poll();
  idle_ = 0;
}

void Link::awaitSent() {
  while (outstanding_ > 0) poll();
}

void Link::barrier() {
  MPI_Request request = MPI_REQUEST_NULL;
  int done = MPI_Ibarrier(MPI_COMM_WORLD, &request) == MPI_SUCCESS ? 0 : -1;
  while (done == 0) {
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) done = -1;
    if (done == 0) poll();
  }
  if (done < 0) throw std::runtime_error("MPI_Ibarrier failed");
}

}  // namespace mk::perf
