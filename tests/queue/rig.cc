#include "queue/rig.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "host/fd_exchange.h"
#include "host/transport.h"

namespace gpu {

namespace {

using namespace mk;
using Clock = std::chrono::steady_clock;

constexpr int kTimeoutMs = 60'000;

// ---- The transport that carries nothing ------------------------------------------------------------------------------

struct Instant {
  std::vector<mkTransportEvent_t> sent;
};

mkTransport_t instantTable() {
  mkTransport_t t = {};
  t.structSize = sizeof(t);
  t.abiMajor = MK_TRANSPORT_ABI_MAJOR;
  t.abiMinor = MK_TRANSPORT_ABI_MINOR;
  t.name = "instant";
  t.lastError = [] { return "transport instant has failed"; };
  t.open = [](void*, int, void** endpoint, uint8_t* address) {
    std::memset(address, 0, MK_TRANSPORT_ADDRESS_BYTES);
    auto* const instant = new Instant;
    instant->sent.reserve(4096);
    *endpoint = instant;
    return 0;
  };
  t.connect = [](void*, int, int, const uint8_t*, int) { return 0; };
  t.registerMemory = [](void* endpoint, const mkTransportMemory_t*, void** handle, uint8_t* key) {
    std::memset(key, 0, MK_TRANSPORT_KEY_BYTES);
    *handle = endpoint;
    return 0;
  };
  t.deregisterMemory = [](void*, void*) { return 0; };
  t.importMemory = [](void* endpoint, int, const uint8_t*, int, void** remote) {
    *remote = endpoint;
    return 0;
  };
  t.releaseMemory = [](void*, void*) { return 0; };
  t.post = [](void* endpoint, int peer, const mkTransportWrite_t* writes, int count, int* accepted) {
    for (int i = 0; i < count; ++i)
      static_cast<Instant*>(endpoint)->sent.push_back({MK_EVENT_SENT, peer, 0, 0, writes[i].cookie});
    *accepted = count;
    return 0;
  };
  t.poll = [](void* endpoint, mkTransportEvent_t* events, int capacity, int* count) {
    auto& sent = static_cast<Instant*>(endpoint)->sent;
    *count = static_cast<int>(std::min(sent.size(), static_cast<size_t>(capacity)));
    std::memcpy(events, sent.data() + (sent.size() - static_cast<size_t>(*count)),
                static_cast<size_t>(*count) * sizeof(*events));
    sent.resize(sent.size() - static_cast<size_t>(*count));
    return 0;
  };
  t.close = [](void* endpoint) {
    delete static_cast<Instant*>(endpoint);
    return 0;
  };
  return t;
}

std::shared_ptr<Transport> instant() {
  static const mkTransport_t table = instantTable();
  auto transport = std::make_shared<Transport>();
  transport->name = table.name;
  transport->table = &table;
  transport->devices = 1;
  transport->properties = {sizeof(mkTransportProperties_t), MK_CONTRACT_ORDERED, 0, 64, 4096, 0, uint64_t{1} << 30};
  return transport;
}

}  // namespace

void die(const std::string& text) {
  std::printf("FAIL %s\n", text.c_str());
  std::fflush(stdout);
  _exit(1);
}

Rig::Rig(int rank, const mkUniqueId_t& id, const std::string& transport, uint64_t workspace) : rank_(rank) {
  settings_ = makeSettings(mkConfig_t{});
  settings_.hostId = "rank " + std::to_string(rank);  // a node of its own
  settings_.timeoutMs = 10'000;
  settings_.initTimeoutMs = kTimeoutMs;
  platform_ = std::make_unique<cuda::CudaPlatform>(settings_);
  Identity identity;
  identity.rank = rank;
  identity.nranks = kNodes;
  identity.hostId = settings_.hostId;
  identity.settings = settings_.agreed();
  BootstrapEvents events;
  events.onVerdict = [](mkResult_t, const std::string& text) { die(text); };
  bootstrap_ = Bootstrap::join(id, identity, kTimeoutMs, std::move(events));

  const auto node = static_cast<uint32_t>(rank);
  const sched::Place place = {kNodes, 1, node, 0};
  const uint64_t token = processToken();
  std::vector<uint64_t> processes;
  for (const auto& p : bootstrap_->allgather({reinterpret_cast<const uint8_t*>(&token), sizeof(token)}, "processes")) {
    uint64_t theirs = 0;
    std::memcpy(&theirs, p.data(), sizeof(theirs));
    processes.push_back(theirs);
  }
  heap_ = std::make_unique<Heap>(*bootstrap_, *platform_, rank, place, std::max(settings_.heapMaxBytes, workspace), 0,
                                 processes);
  platform_->setUp(rank, place, {}, *heap_, settings_);
  proxy_ = std::make_unique<Proxy>(transport == "instant" ? instant() : acquireTransport(transport), 0, node, kNodes,
                                   *heap_, *platform_, 0);
  std::vector<uint8_t> addresses;
  for (const auto& a : bootstrap_->allgather(proxy_->address(), "addresses"))
    addresses.insert(addresses.end(), a.begin(), a.end());
  proxy_->connect(addresses, kTimeoutMs);
  heap_->grow(*bootstrap_, workspace);
  const std::vector<uint8_t> keys = proxy_->registerHeap();
  proxy_->importHeap(peer(), bootstrap_->allgather(keys, "keys")[peer()], kTimeoutMs);
  bootstrap_->initialised();
  proxy_->start([](int peer, const std::string& text) { die("node " + std::to_string(peer) + ": " + text); });
  CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  meet();
}

Rig::~Rig() {
  meet();
  CUDA(cudaStreamDestroy(stream_));
  proxy_->stop();
  meet();
  bootstrap_->depart(kTimeoutMs);
}

uint64_t Rig::sum(uint64_t mine) {
  uint64_t total = 0;
  for (const auto& one : bootstrap_->allgather({reinterpret_cast<const uint8_t*>(&mine), sizeof(mine)}, "sum")) {
    uint64_t theirs = 0;
    std::memcpy(&theirs, one.data(), sizeof(theirs));
    total += theirs;
  }
  return total;
}

void Rig::requireHealth(const char* what) {
  if (!platform_->hasRecord()) return;
  const protocol::FailRecord r = platform_->record();
  die(std::string(what) + ": an agent waited in vain for " + protocol::stageName(r.why.stage) + ", expected " +
      std::to_string(r.expected) + ", saw " + std::to_string(r.seen));
}

void Rig::finish(const char* what) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(kTimeoutMs);
  for (;;) {
    const cudaError_t e = cudaStreamQuery(stream_);
    if (e == cudaSuccess) break;
    if (e != cudaErrorNotReady) die(std::string(what) + ": " + cudaGetErrorString(e));
    if (Clock::now() > deadline) die(std::string(what) + ": the kernel does not end");
  }
  requireHealth(what);
}

void Rig::settle(uint64_t commands, const char* what) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(kTimeoutMs);
  completed_ += commands;
  while (platform_->completions() < completed_) {
    if (Clock::now() < deadline) continue;
    requireHealth(what);
    die(std::string(what) + ": " + std::to_string(platform_->completions()) + " commands of " +
        std::to_string(completed_) + " have completed");
  }
  if (platform_->completions() != completed_) die(std::string(what) + ": more completions than commands");
}

}  // namespace gpu
