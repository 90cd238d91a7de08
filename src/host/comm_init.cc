// Collective parts of a communicator: joining, the network, growing the heap, windows, the common end.  Every step that can
// fail on one rank alone ends in an agreement, so that all ranks fail alike.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "host/comm.h"
#include "host/fd_exchange.h"
#include "host/log.h"
#include "host/nic_choice.h"
#include "host/params.h"

namespace mk {

namespace {

template <class T>
std::span<const uint8_t> bytesOf(const T& value) {
  return {reinterpret_cast<const uint8_t*>(&value), sizeof(T)};
}
template <class T>
T valueOf(const std::vector<uint8_t>& bytes, int rank) {
  T value = {};
  if (bytes.size() != sizeof(T))
    fail(mkErrorInternal, "rank %d sent %zu bytes where %zu were due", rank, bytes.size(), sizeof(T));
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

int chooseDevice(const Transport& transport, const std::vector<std::string>& gpus, uint32_t local) {
  NicQuestion question;
  question.gpus = gpus;
  question.local = local;
  question.cpus = allowedCpus();
  for (int d = 0; d < transport.devices; ++d) {
    mkTransportDevice_t device = {};
    device.structSize = sizeof(device);
    if (transport.table->deviceInfo(transport.context, d, &device) != 0)
      fail(mkErrorTransport, "transport %s cannot describe device %d: %s", transport.name.c_str(), d,
           transport.table->lastError());
    question.devices.push_back(device);
  }
  const NicChoice choice = chooseNic(question);
  const mkTransportDevice_t& chosen = question.devices[static_cast<size_t>(choice.device)];
  MK_INFO(net, "transport %s: device %d of %d, %.64s, PCI %.16s: %s", transport.name.c_str(), choice.device,
          transport.devices, chosen.name, chosen.pciBusId[0] != '\0' ? chosen.pciBusId : "none", choice.reason.c_str());
  return choice.device;
}

}  // namespace

template <class Step>
void Comm::together(const std::string& what, Step&& step) {
  mkResult_t result = mkSuccess;
  std::string text;
  try {
    step();
  } catch (const Error& e) {
    result = e.code();
    text = e.what();
  } catch (const std::bad_alloc&) {
    result = mkErrorSystem;
    text = "out of memory";
  } catch (const std::exception& e) {
    result = mkErrorInternal;
    text = e.what();
  }
  bootstrap_->agree(result, text, what);
}

Comm::Comm(int nranks, int rank, const Settings& settings)
    : settings_(settings), nranks_(nranks), rank_(rank), pid_(getpid()), platform_(Platform::make(settings)) {}

Comm::~Comm() {
  // Its thread calls back into members that go first.  Only where setting up has failed is it not stopped already.
  if (proxy_ != nullptr) proxy_->stop();
}

std::shared_ptr<Comm> Comm::init(int nranks, int rank, const mkUniqueId_t& id, const Settings& settings) {
  std::shared_ptr<Comm> comm(new Comm(nranks, rank, settings));
  const BoundThread bound(*comm->platform_);
  comm->setUp(id);
  return comm;
}

void Comm::setUp(const mkUniqueId_t& id) {
  logSetRank(rank_);
  Identity identity;
  identity.rank = rank_;
  identity.nranks = nranks_;
  identity.hostId = settings_.hostId;
  if (params().shareGpu == 0) identity.deviceId = platform_->deviceId();
  identity.settings = settings_.agreed();
  BootstrapEvents events;
  events.onVerdict = [this](mkResult_t code, const std::string& text) { setError(code, text); };
  events.onLeaving = [this](int rank) { onLeaving(rank); };
  events.argumentText = [this](uint32_t hash, uint64_t) { return argumentText(hash); };
  events.onTick = [this] { tick(); };
  bootstrap_ = Bootstrap::join(id, identity, settings_.initTimeoutMs, std::move(events));

  const PeerInfo& me = bootstrap_->peers()[static_cast<size_t>(rank_)];
  sched::Place& place = place_;
  place.nodes = static_cast<uint32_t>(bootstrap_->nodes());
  place.locals = static_cast<uint32_t>(bootstrap_->ranksPerNode());
  place.node = static_cast<uint32_t>(me.node);
  place.local = static_cast<uint32_t>(me.localRank);
  rankOf_.resize(static_cast<size_t>(nranks_));
  for (const PeerInfo& p : bootstrap_->peers())
    rankOf_[static_cast<size_t>(p.node) * place.locals + static_cast<size_t>(p.localRank)] =
        static_cast<uint32_t>(p.rank);
  rankMap_.locals = place.locals;
  for (uint32_t i = 0; i < rankOf_.size(); ++i) {
    if (rankOf_[i] != i) rankMap_.table = rankOf_.data();
  }
  if (place.nodes > 1024) fail(mkErrorNotSupported, "%u nodes; legal: up to 1024", place.nodes);

  struct Process {
    uint64_t token;
    uint32_t capacity, reserved;
    char gpu[16];  // PCI bus id
  };
  Process mine = {processToken(), platform_->capacity(), 0, {}};
  platform_->pciBusId().copy(mine.gpu, sizeof(mine.gpu) - 1);
  const auto all = bootstrap_->allgather(bytesOf(mine), "processes");
  uint32_t capacity = mine.capacity;
  std::vector<std::string> gpus(place.locals);
  for (int r = 0; r < nranks_; ++r) {
    const auto theirs = valueOf<Process>(all[static_cast<size_t>(r)], r);
    processes_.push_back(theirs.token);
    capacity = std::min(capacity, theirs.capacity);
    const PeerInfo& peer = bootstrap_->peers()[static_cast<size_t>(r)];
    if (static_cast<uint32_t>(peer.node) == place.node)
      gpus[static_cast<size_t>(peer.localRank)].assign(theirs.gpu, strnlen(theirs.gpu, sizeof(theirs.gpu)));
  }
  platform_->setCapacity(capacity);

  heap_ = std::make_unique<Heap>(*bootstrap_, *platform_, rank_, place, settings_.heapMaxBytes, settings_.epochStart,
                                 processes_);
  together("private memory", [&] { platform_->setUp(rank_, place, rankMap_, *heap_, settings_); });
  if (place.nodes > 1) setUpNetwork(gpus);
  growTo(settings_.heapBytes);
  if (proxy_ != nullptr) {
    together("proxy",
             [&] { proxy_->start([this](int node, const std::string& text) { onNetworkFailure(node, text); }); });
  }
  bootstrap_->initialised();
  // The bootstrap's thread looks at the rest of this object from here on.
  control_.store(bootstrap_.get(), std::memory_order_release);
  MK_INFO(init, "rank %d of %d: node %u of %u, local rank %u of %u, platform %s, transport %s", rank_, nranks_,
          place.node, place.nodes, place.local, place.locals, settings_.platform.c_str(),
          transportName_.empty() ? "none" : transportName_.c_str());
}

void Comm::setUpNetwork(const std::vector<std::string>& gpus) {
  const sched::Place& place = place_;
  std::shared_ptr<Transport> transport;
  together("loading the transport", [&] {
    transport = acquireTransport(settings_.transport);
    transportName_ = transport->name;
    if (transport->properties.contract == MK_CONTRACT_COMPLETION && transport->properties.immediateBits < 32)
      fail(mkErrorTransport, "transport %s carries %u immediate bits; 32 are needed", transport->name.c_str(),
           transport->properties.immediateBits);
    const int device = chooseDevice(*transport, gpus, place.local);
    proxy_ =
        std::make_unique<Proxy>(transport, device, place.node, place.nodes, *heap_, *platform_, settings_.epochStart);
  });
  // Both ends must speak the same contract.
  std::string mine(transportName_);
  mine += format(", contract %u", transport->properties.contract);
  const auto names = bootstrap_->allgather({reinterpret_cast<const uint8_t*>(mine.data()), mine.size()}, "transport");
  together("comparing transports", [&] {
    for (int r = 0; r < nranks_; ++r) {
      const std::string theirs(names[static_cast<size_t>(r)].begin(), names[static_cast<size_t>(r)].end());
      if (theirs != mine)
        fail(mkErrorInvalidUsage, "transports differ: rank %d has %s, rank %d has %s", rank_, mine.c_str(), r,
             theirs.c_str());
    }
  });
  const auto addresses = bootstrap_->allgather(proxy_->address(), "transport addresses");
  together("connecting the transport", [&] {
    std::vector<uint8_t> rail;
    for (uint32_t n = 0; n < place.nodes; ++n) {
      const auto& a =
          addresses[static_cast<size_t>(rankAt(static_cast<int32_t>(n), static_cast<int32_t>(place.local)))];
      if (a.size() != MK_TRANSPORT_ADDRESS_BYTES) fail(mkErrorInternal, "a transport address of %zu bytes", a.size());
      rail.insert(rail.end(), a.begin(), a.end());
    }
    proxy_->connect(rail, bootstrap_->leftMs());
  });
  // All ranks do as the one that cannot do better.
  std::string reason;
  together("asking whether the network reaches the heap", [&] { reason = proxy_->stagingReason(); });
  reason.resize(std::min<size_t>(reason.size(), 1000));
  const auto reasons =
      bootstrap_->allgather({reinterpret_cast<const uint8_t*>(reason.data()), reason.size()}, "staging");
  const auto first = std::find_if(reasons.begin(), reasons.end(), [](const auto& r) { return !r.empty(); });
  if (first == reasons.end()) return;
  MK_INFO(net, "transport %s: all goes through pinned host memory; rank %d: %.*s", transportName_.c_str(),
          static_cast<int>(first - reasons.begin()), static_cast<int>(first->size()),
          reinterpret_cast<const char*>(first->data()));
  together("network memory on the host", [&] { proxy_->stage(); });
  staged_ = true;
}

void Comm::growTo(uint64_t workspace) {
  try {
    heap_->grow(*bootstrap_, workspace);
  } catch (const Error& e) {
    if (heap_->torn()) setError(e.code(), e.what());  // on every rank
    throw;
  }
  if (proxy_ != nullptr) {
    const sched::Place& place = place_;
    // The endpoint is this thread's meanwhile: a verdict must not close it (tick).
    struct Endpoint {
      Comm& comm;
      explicit Endpoint(Comm& c) : comm(c) {
        {
          const std::lock_guard lock(comm.mutex_);
          if (comm.error_ != mkSuccess) throw Error(comm.error_, comm.errorText_);
          comm.growing_ = true;
        }
        comm.proxy_->pause();
      }
      ~Endpoint() {
        comm.proxy_->resume();
        const std::lock_guard lock(comm.mutex_);
        comm.growing_ = false;
      }
    } const endpoint(*this);
    try {
      std::vector<uint8_t> keys;
      together("registering the heap", [&] { keys = proxy_->registerHeap(); });
      const auto all = bootstrap_->allgather(keys, "memory keys");
      together("importing the rail's heaps", [&] {
        for (uint32_t n = 0; n < place.nodes; ++n) {
          if (n != place.node)
            proxy_->importHeap(
                n, all[static_cast<size_t>(rankAt(static_cast<int32_t>(n), static_cast<int32_t>(place.local)))],
                bootstrap_->leftMs());
        }
        proxy_->openCards();
      });
    } catch (const Error& e) {
      // Registrations have been dropped for new ones that not everybody has: all ranks are here, and none can go on.
      setError(e.code(), e.what());
      throw;
    }
  }
  workspace_ = heap_->workspace();
}

void Comm::reserve(size_t bytes) {
  throwIfFailed();
  together("mkCommReserve", [this] {
    requireQuiet("mkCommReserve");
    requireNetworkSettled();
  });
  const uint64_t mine = bytes;
  const auto all = bootstrap_->allgather(bytesOf(mine), "reserve");
  uint64_t most = 0;
  for (int r = 0; r < nranks_; ++r) most = std::max(most, valueOf<uint64_t>(all[static_cast<size_t>(r)], r));
  if (most > workspace_) growTo(most);
}

void Comm::finalize() {
  together("mkCommFinalize", [this] {
    platform_->requireNoCapture("mkCommFinalize");
    while (!awaitIdle(after(1000)) && asyncError() == mkSuccess) {
    }
    throwIfFailed();
    requireNetworkSettled();
  });
}

mkWindow* Comm::registerWindow(void* ptr, size_t bytes) {
  throwIfFailed();
  const sched::Place& place = place_;
  auto window = std::make_unique<mkWindow>();
  WindowExport mine;
  std::vector<uint8_t> claim(sizeof(uint64_t));  // the size, then the platform's
  together("window", [&] {
    requireQuiet("mkCommWindowRegister");
    mine = platform_->exportWindow(ptr, bytes);
    window->hold = mine.hold;
    const uint64_t size = bytes;
    std::memcpy(claim.data(), &size, sizeof(size));
    claim.insert(claim.end(), mine.claim.begin(), mine.claim.end());
  });
  const auto all = bootstrap_->allgather(claim, "window: sizes");
  together("window: comparing sizes", [&] {
    for (int r = 0; r < nranks_; ++r) {
      const std::vector<uint8_t>& theirs = all[static_cast<size_t>(r)];
      uint64_t size = 0;
      if (theirs.size() < sizeof(size)) fail(mkErrorInternal, "rank %d sent a claim of %zu bytes", r, theirs.size());
      std::memcpy(&size, theirs.data(), sizeof(size));
      if (size != bytes)
        fail(mkErrorInvalidUsage, "window sizes differ: %zu bytes on rank %d, %llu on rank %d", bytes, rank_,
             static_cast<unsigned long long>(size), r);
    }
  });
  std::vector<std::vector<UniqueFd>> fds =
      exchangeFds(*bootstrap_, rank_, processes_, mine.fds, !platform_->sharesMappings(), "window");
  together("window: mapping peers", [&] {
    window->peers.resize(place.locals);
    window->bases.resize(place.locals);
    for (uint32_t l = 0; l < place.locals; ++l) {
      if (l == place.local) {
        window->bases[l] = static_cast<char*>(ptr);
        continue;
      }
      const auto r = static_cast<size_t>(rankAt(static_cast<int32_t>(place.node), static_cast<int32_t>(l)));
      window->peers[l] = platform_->importWindow({all[r].begin() + sizeof(uint64_t), all[r].end()}, std::move(fds[l]),
                                                 processes_[r] == processToken());
      window->bases[l] = window->peers[l].base;
    }
    window->bytes = bytes;
  });
  const std::lock_guard lock(mutex_);
  window->id = nextWindow_++;
  mkWindow* handle = window.get();
  windows_.emplace(window->id, std::move(window));
  return handle;
}

void Comm::deregisterWindow(mkWindow* window) {
  throwIfFailed();
  uint64_t mine = 0;
  together("deregistering a window", [&] {
    requireQuiet("mkCommWindowDeregister");
    mine = checkWindow(window)->id;
  });
  const auto all = bootstrap_->allgather(bytesOf(mine), "deregistering a window");
  together("deregistering a window: comparing", [&] {
    for (int r = 0; r < nranks_; ++r) {
      if (valueOf<uint64_t>(all[static_cast<size_t>(r)], r) != mine)
        fail(mkErrorInvalidUsage, "ranks %d and %d deregister different windows", rank_, r);
    }
  });
  const std::lock_guard lock(mutex_);
  windows_.erase(mine);
}

const mkWindow* Comm::checkWindow(mkWindow* window) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, w] : windows_) {
    if (w.get() == window) return window;
  }
  fail(mkErrorInvalidArgument, "window %p is not one of this communicator's", static_cast<void*>(window));
}

}  // namespace mk
