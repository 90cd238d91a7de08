// See ud_port.h.
#include "ud_port.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/failure.h"

namespace mk::plugin::ibverbs {
namespace {

constexpr uint32_t kReceives = 256, kSends = 32;
constexpr uint32_t kHeader = 40;  // room for a global routing header, before every message
constexpr uint32_t kSlot = 256;
static_assert(kHeader + sizeof(Hello) <= kSlot);
static_assert(sizeof(Hello) <= 256, "the smallest MTU");
constexpr uint64_t kSendMark = uint64_t{1} << 32;  // in the number of a request that sends

}  // namespace

UdPort::UdPort(const OpenDevice& device, const Settings& settings)
    : device_(device), settings_(settings), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  const std::string& name = device_.info.device;
  if (wake_.get() < 0) failErrno(errno, "eventfd");
  channel_.reset(ibv_create_comp_channel(device_.context.get()));
  if (channel_ == nullptr) failErrno(errno, "no completion channel on " + name);
  const int flags = fcntl(channel_->fd, F_GETFL);
  if (flags < 0 || fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK) != 0)
    failErrno(errno, "completion channel of " + name);
  queue_.reset(ibv_create_cq(device_.context.get(), kReceives + kSends, nullptr, channel_.get(), 0));
  if (queue_ == nullptr) failErrno(errno, "no completion queue on " + name);
  memory_.resize(size_t{kSlot} * (kReceives + kSends));
  registration_.reset(ibv_reg_mr(device_.domain.get(), memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE));
  if (registration_ == nullptr)
    failErrno(errno, format("cannot register %zu bytes with %s (is the limit on locked memory, ulimit -l, too low?)",
                            memory_.size(), name.c_str()));

  ibv_qp_init_attr init = {};
  init.qp_type = IBV_QPT_UD;
  init.send_cq = init.recv_cq = queue_.get();
  init.cap.max_send_wr = kSends;
  init.cap.max_recv_wr = kReceives;
  init.cap.max_send_sge = init.cap.max_recv_sge = 1;
  pair_.reset(ibv_create_qp(device_.domain.get(), &init));
  if (pair_ == nullptr) failErrno(errno, "no datagram queue pair on " + name);
  const Token random = randomToken();
  std::memcpy(&key_, random.data(), sizeof(key_));
  key_ &= 0x7fffffff;  // the highest bit has a meaning of its own
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = device_.info.port;
  attributes.qkey = key_;
  int error = ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  for (uint32_t slot = 0; slot < kReceives && error == 0; ++slot) postReceive(slot);
  attributes.qp_state = IBV_QPS_RTR;
  if (error == 0) error = ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE);
  attributes.qp_state = IBV_QPS_RTS;
  if (error == 0) error = ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN);
  if (error != 0) failErrno(error, "the datagram queue pair on " + name);
  for (uint32_t slot = 0; slot < kSends; ++slot) freeSends_.push_back(kReceives + slot);
}

UdPort::~UdPort() = default;

UdAddress UdPort::address() const { return {pair_->qp_num, key_}; }

void UdPort::addPeer(const PortAddress& port, const UdAddress& address) {
  Peer& peer = peers_.emplace_back();
  peer.address = address;
  // Here always with a global header where the peer may be on another subnet: agree() says so for the connections.
  ibv_ah_attr route = device_.routeTo(port, agree(device_.address(), port).global, settings_);
  peer.route.reset(ibv_create_ah(device_.domain.get(), &route));
  if (peer.route == nullptr)
    failErrno(errno, format("%s finds no way to %s", device_.info.name().c_str(), describe(port).c_str()));
}

void UdPort::postReceive(uint32_t slot) {
  ibv_sge place = {};
  place.addr = reinterpret_cast<uint64_t>(memory_.data() + size_t{kSlot} * slot);
  place.length = kSlot;
  place.lkey = registration_->lkey;
  ibv_recv_wr request = {}, *bad = nullptr;
  request.wr_id = slot;
  request.sg_list = &place;
  request.num_sge = 1;
  if (ibv_post_recv(pair_.get(), &request, &bad) != 0) broken_ = true;
}

bool UdPort::send(int peer, const Hello& hello) {
  collect();
  if (freeSends_.empty() || broken_) return false;
  const Peer& to = peers_[static_cast<size_t>(peer)];
  const uint32_t slot = freeSends_.back();
  uint8_t* const bytes = memory_.data() + size_t{kSlot} * slot;
  std::memcpy(bytes, &hello, sizeof(hello));
  ibv_sge place = {};
  place.addr = reinterpret_cast<uint64_t>(bytes);
  place.length = sizeof(hello);
  place.lkey = registration_->lkey;
  ibv_send_wr request = {}, *bad = nullptr;
  request.wr_id = kSendMark | slot;
  request.sg_list = &place;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.ud.ah = to.route.get();
  request.wr.ud.remote_qpn = to.address.number;
  request.wr.ud.remote_qkey = to.address.key;
  if (ibv_post_send(pair_.get(), &request, &bad) != 0) return false;
  freeSends_.pop_back();
  return true;
}

void UdPort::collect() {
  ibv_wc done[16];
  for (int count = 0; (count = ibv_poll_cq(queue_.get(), 16, done)) > 0;) {
    for (int i = 0; i < count; ++i) {
      const auto slot = static_cast<uint32_t>(done[i].wr_id);
      if (done[i].status != IBV_WC_SUCCESS && !broken_) {
        broken_ = true;
        MK_PLUGIN_WARN("%s: the datagram queue pair has failed: %s", device_.info.name().c_str(),
                       ibv_wc_status_str(done[i].status));
      }
      if ((done[i].wr_id & kSendMark) != 0) {
        freeSends_.push_back(slot);
        continue;
      }
      if (broken_) continue;
      if (done[i].byte_len == kHeader + sizeof(Hello)) {
        Hello hello = {};
        std::memcpy(&hello, memory_.data() + size_t{kSlot} * slot + kHeader, sizeof(hello));
        received_.push_back(hello);
      }
      postReceive(slot);
    }
  }
}

bool UdPort::receive(Hello* hello) {
  if (received_.empty()) collect();
  if (received_.empty()) return false;
  *hello = received_.front();
  received_.pop_front();
  return true;
}

void UdPort::wait(int ms) {
  // In this order: what comes after the request for an event causes one.
  if (ibv_req_notify_cq(queue_.get(), 0) != 0) ms = ms < 0 ? 100 : std::min(ms, 100);
  collect();
  if (!received_.empty()) return;
  pollfd fds[2] = {{wake_.get(), POLLIN, 0}, {channel_->fd, POLLIN, 0}};
  ::poll(fds, 2, ms);
  uint64_t drained = 0;
  if (::read(wake_.get(), &drained, sizeof(drained)) < 0) drained = 0;  // nobody has called wake()
  ibv_cq* queue = nullptr;
  void* nothing = nullptr;
  unsigned events = 0;
  while (ibv_get_cq_event(channel_.get(), &queue, &nothing) == 0) ++events;
  // Or destroying the queue would wait for them for ever.
  if (events > 0) ibv_ack_cq_events(queue_.get(), events);
}

void UdPort::wake() {
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof(one)) < 0) return;  // full: it is awake anyway
}

}  // namespace mk::plugin::ibverbs
