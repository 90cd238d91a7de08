// See endpoint.h.  Here: opening, connecting, memory, closing.
#include "endpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/checks.h"
#include "common/failure.h"
#include "common/thread.h"

namespace mk::plugin::efa {
namespace {

using namespace std::chrono_literals;

constexpr auto kKeeperPeriod = 1ms;
constexpr uint64_t kWindowMost = 4096;

}  // namespace

Endpoint::Endpoint(const Provider& provider, const Device& device)
    : provider_(provider), port_(std::make_unique<Port>(provider, device)) {
  const std::vector<uint8_t>& name = port_->name();
  const std::string& text = provider.settings().provider;
  if (name.size() > kFabricNameBytes)
    fail(mkErrorTransport, "addresses of provider %s have %zu bytes; at most %zu are carried", text.c_str(),
         name.size(), kFabricNameBytes);
  address_.magic = kMagic;
  address_.version = kWireVersion;
  address_.id = randomToken();
  address_.secret = randomToken();
  std::memcpy(address_.provider, text.data(), std::min(text.size(), sizeof(address_.provider) - 1));
  address_.senderInData = provider.senderInData();
  std::memcpy(address_.name, name.data(), name.size());
  address_.nameBytes = static_cast<uint16_t>(name.size());
  const std::vector<HostAddress> hosts = ownAddresses();
  address_.hosts = static_cast<uint16_t>(std::min(hosts.size(), kHostAddresses));
  std::copy_n(hosts.begin(), address_.hosts, address_.host);
  listener_ = listenAnywhere(&address_.port);
}

void Endpoint::takeAddresses(int count, int self, const uint8_t* addresses) {
  for (int i = 0; i < count; ++i) {
    Peer& peer = peers_.emplace_back();
    peer.index = i;
    peer.self = i == self;
    std::memcpy(&peer.address, addresses + static_cast<size_t>(i) * MK_TRANSPORT_ADDRESS_BYTES, sizeof(Address));
    const Address& address = peer.address;
    if (address.magic != kMagic)
      fail(mkErrorInvalidArgument, "address %d of %d is not one of an efa endpoint", i, count);
    if (address.version != kWireVersion)
      fail(mkErrorVersion, "peer %d runs efa transport version %u, this one is %u", i, address.version, kWireVersion);
    if (address.hosts < 1 || address.hosts > kHostAddresses || address.nameBytes > kFabricNameBytes ||
        address.provider[sizeof(address.provider) - 1] != '\0')
      fail(mkErrorInvalidArgument, "address %d of %d makes no sense", i, count);
    if (peer.self != (address.id == address_.id))
      fail(mkErrorInvalidArgument, "address %d of %d %s this endpoint's own", i, count, peer.self ? "is not" : "is");
    if (std::strcmp(address.provider, address_.provider) != 0)
      fail(mkErrorInvalidUsage, "peer %d runs provider %s, this endpoint %s: MKERNEL_EFA_PROVIDER must agree", i,
           address.provider, address_.provider);
    if (address.senderInData != address_.senderInData || address.nameBytes != address_.nameBytes)
      fail(mkErrorInvalidUsage, "peer %d runs another version of provider %s, which writes otherwise", i,
           address.provider);
    if (peer.self) continue;
    peer.fabricAddress = port_->insert(address.name);
    const size_t place = static_cast<size_t>(peer.fabricAddress);
    if (place >= peerOfSource_.size()) peerOfSource_.resize(place + 1, -1);
    peerOfSource_[place] = i;
  }
}

void Endpoint::connect(int count, int self, const uint8_t* addresses, int timeoutMs) {
  checkConnect(connectTried_, count, self, addresses, timeoutMs);
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeoutMs);
  connectTried_ = true;
  self_ = self;

  // Of the completion queue a quarter is for our own writes, the rest for arrivals.
  const uint64_t others = std::max<uint64_t>(1, static_cast<uint64_t>(count) - 1);
  const uint64_t entries = port_->queueEntries();
  postLimit_ = static_cast<uint32_t>(entries / 4);
  window_ = std::min(kWindowMost, (entries - postLimit_) / others);
  if (window_ < 1)
    fail(mkErrorTransport, "the completion queue of %llu entries is too small for %llu peers", wide(entries),
         wide(others));
  const size_t flights = others * provider_.settings().outstanding;
  flights_.resize(flights);
  contexts_.resize(flights);
  for (size_t i = flights; i > 0; --i) freeFlights_.push_back(static_cast<uint32_t>(i - 1));

  mkTransportMemory_t pad = {};
  pad.structSize = sizeof(pad);
  pad.kind = MK_MEMORY_KIND_HOST;
  pad.address = pad_;
  pad.bytes = sizeof(pad_);
  pad.fd = -1;
  padRegistration_ = port_->registerMemory(pad);

  takeAddresses(count, self, addresses);
  rendezvous(listener_.get(), address_, self, {padRegistration_.remoteBase + 8, padRegistration_.key, window_}, peers_,
             deadline);
  listener_.reset();
  for (Peer& peer : peers_) peer.granted = window_;
  connected_ = true;

  keeper_ = startThread("mk-efa", [this] { keep(); });
}

void Endpoint::keep() {
  try {
    std::unique_lock lock(mutex_);
    while (!stopKeeper_) {
      wake_.wait_for(lock, kKeeperPeriod);
      bool first = true;
      // As long as there is something to do, but never in the caller's way for long.
      while (!stopKeeper_ && (!first || Clock::now() - servedAt_ >= kKeeperPeriod) && progress(Clock::now())) {
        first = false;
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
      }
    }
  } catch (const std::exception&) {
    // Without memory for events there is nobody to tell; the caller's own calls find out as well.
  }
}

Peer& Endpoint::peerAt(int peer) { return peerOf(connected_, peers_, peer); }

// ---- Memory --------------------------------------------------------------------------------------------------------

void Endpoint::sendAll(const Message& message) {
  for (Peer& peer : peers_)
    if (!peer.self) peer.connection.send(message);
}

void* Endpoint::registerMemory(const mkTransportMemory_t& memory, uint8_t* key) {
  checkMemory(connected_, memory);
  const std::lock_guard lock(mutex_);
  auto region = std::make_shared<LocalRegion>();
  region->base = static_cast<std::byte*>(memory.address);
  region->bytes = memory.bytes;
  region->registration = port_->registerMemory(memory);
  region->sequence = ++sequence_;
  Key made = {};
  made.magic = kMagic;
  made.endpoint = address_.id;
  made.sequence = region->sequence;
  made.bytes = region->bytes;
  made.base = region->registration.remoteBase;
  made.key = region->registration.key;
  std::memset(key, 0, MK_TRANSPORT_KEY_BYTES);
  std::memcpy(key, &made, sizeof(made));
  if (memory.kind == MK_MEMORY_KIND_CUDA)
    MK_PLUGIN_INFO("%llu bytes of GPU memory registered through %s", wide(memory.bytes), region->registration.means);
  sendAll(makeMessage(MessageType::registered, region->sequence));
  void* const handle = region.get();
  registrations_[handle] = std::move(region);
  return handle;
}

void Endpoint::deregisterMemory(void* handle) {
  const std::lock_guard lock(mutex_);
  const auto found = registrations_.find(handle);
  if (found == registrations_.end())
    fail(mkErrorInvalidArgument, "handle %p is no registration of this endpoint", handle);
  LocalRegion& region = *found->second;
  dropWaiting(region);
  // What the provider has cannot be taken back; it ends soon, or its peer is not there any more.
  const auto deadline = Clock::now() + std::chrono::milliseconds(provider_.settings().teardownMs);
  while (region.inFlight > 0) {
    if (Clock::now() >= deadline)
      fail(mkErrorTimeout,
           "%u writes from the memory at %p are still under way after %lld ms; close the endpoint first",
           region.inFlight, static_cast<void*>(region.base), static_cast<long long>(provider_.settings().teardownMs));
    if (!progress(Clock::now())) std::this_thread::yield();
  }
  const uint64_t sequence = region.sequence;
  registrations_.erase(found);
  sendAll(makeMessage(MessageType::withdrawn, sequence));
}

void* Endpoint::importMemory(int index, const uint8_t* keyBytes, int timeoutMs) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peerAt(index);
  if (timeoutMs < 0) fail(mkErrorInvalidArgument, "timeoutMs %d: must not be negative", timeoutMs);
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeoutMs);
  Key key = {};
  std::memcpy(&key, keyBytes, sizeof(key));
  if (key.magic != kMagic || key.endpoint != peer.address.id)
    fail(mkErrorInvalidArgument, "the key is not of a registration of %s", peer.name().c_str());
  // What the peer has said by now counts; what it has said of the registration itself is waited for.
  for (;;) {
    const auto now = Clock::now();
    hearPeers(now);
    if (peer.newest >= key.sequence) break;
    if (peer.state != Peer::State::connected) fail(mkErrorRemote, "%s", peer.reason.c_str());
    if (now >= deadline)
      fail(mkErrorTimeout, "%s has not told of its memory within %d ms", peer.name().c_str(), timeoutMs);
    progress(now);
    std::this_thread::sleep_for(100us);
  }
  if (peer.registrations.count(key.sequence) == 0)
    fail(mkErrorInvalidArgument, "%s has deregistered the memory", peer.name().c_str());
  auto remote = std::make_unique<RemoteRegion>(RemoteRegion{index, key.bytes, key.base, key.key});
  void* const handle = remote.get();
  imports_[handle] = std::move(remote);
  return handle;
}

void Endpoint::releaseMemory(void* remote) {
  const std::lock_guard lock(mutex_);
  if (imports_.erase(remote) == 0) fail(mkErrorInvalidArgument, "%p is no import of this endpoint", remote);
}

// ---- The end -------------------------------------------------------------------------------------------------------

// Whether no peer needs us any more: it has nothing under way to us, or is going itself, or has gone.
bool Endpoint::settled() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
    const bool heard = peer.saidFarewell || peer.state != Peer::State::connected || !peer.connection.open();
    return peer.self || (heard && !peer.owedFarewell && !peer.connection.backlogged());
  });
}

// Lets writes under way arrive and peers have the end of theirs, for a bounded time: what a provider has taken cannot be taken
// back, and a peer whose provider copies on arrival would still copy after we have gone.
void Endpoint::leave() {
  const auto deadline = Clock::now() + std::chrono::milliseconds(provider_.settings().teardownMs);
  for (Peer& peer : peers_) {
    for (const uint32_t number : peer.waiting) finish(number, mkErrorTransport, Flight::State::free);
    peer.waiting.clear();
  }
  const auto serve = [&](auto&& done, const char* what) {
    while (!done()) {
      const auto now = Clock::now();
      if (now >= deadline) {
        MK_PLUGIN_WARN("closing an endpoint: %s within %lld ms", what,
                       static_cast<long long>(provider_.settings().teardownMs));
        return;
      }
      if (!progress(now)) std::this_thread::sleep_for(50us);
    }
  };
  serve([&] { return dead_ || posted_ == 0; }, "writes under way have not completed");
  sendAll(makeMessage(MessageType::goodbye));
  serve([&] { return settled(); }, "a peer has not taken leave");
}

Endpoint::~Endpoint() {
  {
    const std::lock_guard lock(mutex_);
    stopKeeper_ = true;
  }
  wake_.notify_all();
  if (keeper_.joinable()) keeper_.join();
  if (connected_) {
    try {
      const std::lock_guard lock(mutex_);
      leave();
    } catch (const std::exception&) {
      // Out of memory: then without taking leave.
    }
  }
  port_->stop();
  // Registrations go before the rest of the port they belong to.
  for (Flight& flight : flights_) flight.source.reset();
  registrations_.clear();
  padRegistration_ = {};
}

}  // namespace mk::plugin::efa
