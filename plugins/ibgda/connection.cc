// See connection.h.
#include "connection.h"

#include <endian.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "common/failure.h"

namespace mk::plugin::ibgda {
namespace {

constexpr uint32_t kInlineBytes = 8;  // a flag
constexpr uint32_t kFirstPacket = 0;  // sequence number

const char* syndromeText(uint8_t syndrome) {
  switch (syndrome) {
    case MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR:
      return "local length";
    case MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR:
      return "the card does not understand an entry";
    case MLX5_CQE_SYNDROME_LOCAL_PROT_ERR:
      return "the source is not registered memory";
    case MLX5_CQE_SYNDROME_WR_FLUSH_ERR:
      return "the connection had failed before";
    case MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR:
      return "the peer's card calls the request invalid";
    case MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR:
      return "the destination is not memory the peer has registered";
    case MLX5_CQE_SYNDROME_REMOTE_OP_ERR:
      return "the peer's card could not do it";
    case MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR:
      return "the peer does not answer";
    case MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR:
      return "the peer is not ready to receive";
    default:
      return "see the card's documentation";
  }
}

// The segments of an entry, as the card reads them.
struct Segments {
  mlx5_wqe_ctrl_seg control;
  mlx5_wqe_raddr_seg remote;
  union {
    mlx5_wqe_data_seg data;
    struct {
      __be32 count;
      uint8_t bytes[12];
    } inlined;
  };
};
static_assert(sizeof(Segments) == 48 && sizeof(mlx5_cqe64) == 64);

}  // namespace

Connection::Connection(const OpenDevice& device, const Settings& settings)
    : settings_(settings), most_(settings.entries / kEntriesPerWrite) {
  const uint32_t entries = settings.entries;
  ibv_context* const context = device.context.get();
  // Every entry may fail, and the driver may make the queue longer than it was asked for.
  completions_.reset(ibv_create_cq(context, static_cast<int>(4 * entries - 1), nullptr, nullptr, 0));
  if (completions_ == nullptr) failErrno(errno, device.info.name() + ": no completion queue");
  ibv_qp_init_attr_ex attributes = {};
  attributes.send_cq = attributes.recv_cq = completions_.get();
  attributes.qp_type = IBV_QPT_RC;
  attributes.comp_mask = IBV_QP_INIT_ATTR_PD;
  attributes.pd = device.domain.get();
  attributes.cap.max_send_wr = entries;
  attributes.cap.max_recv_wr = 1;
  attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
  attributes.cap.max_inline_data = kInlineBytes;
  mlx5dv_qp_init_attr direct = {};
  direct.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
  direct.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
  pair_.reset(mlx5dv_create_qp(context, &attributes, &direct));
  if (pair_ == nullptr)
    failErrno(errno, format("%s: no queue pair of %u entries", device.info.name().c_str(), entries));

  mlx5dv_qp pair = {};
  mlx5dv_cq queue = {};
  mlx5dv_obj objects = {};
  objects.qp.in = pair_.get();
  objects.qp.out = &pair;
  objects.cq.in = completions_.get();
  objects.cq.out = &queue;
  if (const int r = mlx5dv_init_obj(&objects, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ); r != 0)
    failErrno(r, device.info.name() + ": the layout of its queues is not to be had");
  // The card counts in basic blocks; the driver may have made more of them than entries were asked for.
  if (pair.sq.stride != MLX5_SEND_WQE_BB || pair.sq.wqe_cnt < 4 || pair.sq.wqe_cnt > 4096 ||
      (pair.sq.wqe_cnt & (pair.sq.wqe_cnt - 1)) != 0)
    fail(mkErrorTransport,
         "%s: a queue of %u blocks of %u bytes; legal are 4 to 4096 of 64: lower MKERNEL_IBGDA_ENTRIES",
         device.info.name().c_str(), pair.sq.wqe_cnt, pair.sq.stride);
  if ((queue.cqe_size != 64 && queue.cqe_size != 128) || queue.cqe_cnt < pair.sq.wqe_cnt)
    fail(mkErrorTransport, "%s: completions of %u bytes in a queue of %u; legal are 64 and 128, and %u or more",
         device.info.name().c_str(), queue.cqe_size, queue.cqe_cnt, pair.sq.wqe_cnt);
  entries_ = static_cast<char*>(pair.sq.buf);
  entryCount_ = pair.sq.wqe_cnt;
  records_ = pair.dbrec;
  doorbell_ = pair.bf.reg;
  // Of larger completions the second half is used.
  cqes_ = static_cast<const char*>(queue.buf) + queue.cqe_size - 64;
  cqeCount_ = queue.cqe_cnt;
  cqeStride_ = queue.cqe_size;
  cqRecord_ = queue.dbrec;
}

void Connection::connect(const OpenDevice& device, const PortAddress& peer, const RdmaPath& path, uint32_t peerNumber,
                         const std::string& peerName) {
  const auto modify = [&](ibv_qp_attr& attributes, int mask, const char* state) {
    if (const int r = ibv_modify_qp(pair_.get(), &attributes, mask); r != 0)
      failErrno(
          r, format("%s to %s: the queue pair cannot be made %s", device.info.name().c_str(), peerName.c_str(), state));
  };
  ibv_qp_attr a = {};
  a.qp_state = IBV_QPS_INIT;
  a.port_num = device.info.port;
  a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  modify(a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "ready to connect");
  a = {};
  a.qp_state = IBV_QPS_RTR;
  a.path_mtu = path.mtu;
  a.dest_qp_num = peerNumber;
  a.rq_psn = kFirstPacket;
  a.max_dest_rd_atomic = 1;
  a.min_rnr_timer = 12;
  a.ah_attr = routeTo(peer, path.global, device.info.port, device.gid.index, settings_);
  modify(a,
         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
             IBV_QP_MIN_RNR_TIMER,
         "ready to receive");
  a = {};
  a.qp_state = IBV_QPS_RTS;
  a.timeout = static_cast<uint8_t>(settings_.timeout);
  a.retry_cnt = static_cast<uint8_t>(settings_.retryCount);
  a.rnr_retry = 7;  // for ever
  a.sq_psn = kFirstPacket;
  a.max_rd_atomic = 1;
  modify(a,
         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
         "ready to send");
}

// Writes one entry.  Without a key of its own the source goes into the entry itself.
void Connection::put(uint32_t opcode, uint8_t flags, uint64_t address, uint32_t key, const void* source,
                     uint32_t sourceKey, uint64_t bytes) {
  Segments s = {};
  mlx5dv_set_ctrl_seg(&s.control, static_cast<uint16_t>(posted_), static_cast<uint8_t>(opcode), 0, pair_->qp_num, flags,
                      sizeof(s) / 16, 0, 0);
  s.remote.raddr = htobe64(address);
  s.remote.rkey = htobe32(key);
  if (sourceKey != 0) {
    mlx5dv_set_data_seg(&s.data, static_cast<uint32_t>(bytes), sourceKey, reinterpret_cast<uintptr_t>(source));
  } else {
    s.inlined.count = htobe32(MLX5_INLINE_SEG | static_cast<uint32_t>(bytes));
    std::memcpy(s.inlined.bytes, source, bytes);
  }
  std::memcpy(block(posted_), &s, sizeof(s));
  std::memcpy(&lastControl_, &s, sizeof(lastControl_));
  ++posted_;
}

namespace {

// What was stored before is seen by the card before what is stored next, also where that goes to a register that is mapped
// write-combining, which an ordinary store may pass.
void cardFence() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#elif defined(__aarch64__)
  asm volatile("dmb oshst" ::: "memory");
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace

// Entries, then the record, then the doorbell, in this order for the card.
void Connection::ring() {
  cardFence();
  std::atomic_ref<__be32>(records_[MLX5_SND_DBR])
      .store(htobe32(static_cast<uint32_t>(posted_ & 0xffff)), std::memory_order_release);
  cardFence();
  std::atomic_ref<uint64_t>(*static_cast<uint64_t*>(doorbell_)).store(lastControl_, std::memory_order_release);
  cardFence();  // nor may it linger
}

int Connection::post(int peer, const mkTransportWrite_t* writes, int count, std::deque<mkTransportEvent_t>& events) {
  int taken = 0;
  for (; taken < count; ++taken) {
    const mkTransportWrite_t& w = writes[taken];
    if (outstanding_ >= most_) break;
    ++outstanding_;
    if (broken_) {
      events.push_back({MK_EVENT_SENT, peer, mkErrorTransport, 0, w.cookie});
      continue;
    }
    if (w.bytes != 0) {
      const auto& to = *static_cast<const RemoteMemory*>(w.remoteMemory);
      put(MLX5_OPCODE_RDMA_WRITE, 0, to.address + w.remoteOffset, to.key, w.source,
          static_cast<const LocalMemory*>(w.localMemory)->region->lkey, w.bytes);
    }
    // The connection delivers in order, so the flag comes after the payload; and its completion says that both have.
    const auto& flag = *static_cast<const RemoteMemory*>(w.flagMemory);
    put(MLX5_OPCODE_RDMA_WRITE, MLX5_WQE_CTRL_CQ_UPDATE, flag.address + w.flagOffset, flag.key, &w.flagValue, 0,
        sizeof(w.flagValue));
    cookies_.push_back(w.cookie);
  }
  if (taken > 0 && !broken_) ring();
  return taken;
}

// One completion; false: there is none.
bool Connection::consume(int peer, std::deque<mkTransportEvent_t>& events) {
  const char* const at = cqes_ + consumed_ % cqeCount_ * cqeStride_;
  // The card writes the last byte last; it is read with its neighbours, as one word.
  const auto* const last = reinterpret_cast<const uint64_t*>(at + offsetof(mlx5_cqe64, sop_drop_qpn));
  const uint64_t word = std::atomic_ref<const uint64_t>(*last).load(std::memory_order_acquire);
  mlx5_cqe64 cqe = {};
  std::memcpy(&cqe.sop_drop_qpn, &word, sizeof(word));
  const uint8_t opcode = mlx5dv_get_cqe_opcode(&cqe);
  if (opcode == MLX5_CQE_INVALID || mlx5dv_get_cqe_owner(&cqe) != (consumed_ / cqeCount_ & 1)) return false;
  const uint8_t syndrome = reinterpret_cast<const mlx5_err_cqe*>(at)->syndrome;
  ++consumed_;
  std::atomic_ref<__be32>(*cqRecord_)
      .store(htobe32(static_cast<uint32_t>(consumed_ & 0xffffff)), std::memory_order_release);
  if (broken_) return true;
  if (opcode != MLX5_CQE_REQ) {
    std::string why = syndromeText(syndrome);
    if (syndrome == MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR) why += ": " + patienceText(settings_);
    breakOff(peer, format("the connection to peer %d has failed: %s (syndrome 0x%02x)", peer, why.c_str(), syndrome),
             true, events);
    return true;
  }
  // Sixteen bits of the entry's index; no more than a queue's length have been under way.
  const auto advance = static_cast<uint16_t>(be16toh(cqe.wqe_counter) + 1u - (retired_ & 0xffff));
  retired_ += advance;
  if (handedOut_) {
    ++newlyRetired_;
  } else if (!cookies_.empty()) {
    events.push_back({MK_EVENT_SENT, peer, mkSuccess, 0, cookies_.front()});
    cookies_.pop_front();
  }
  return true;
}

void Connection::poll(int peer, std::deque<mkTransportEvent_t>& events) {
  newlyRetired_ = 0;
  for (uint32_t i = 0; i < entryCount_ && consume(peer, events); ++i) {
  }
  if (newlyRetired_ > 0) events.push_back({MK_EVENT_RETIRED, peer, mkSuccess, newlyRetired_, retired_});
}

void Connection::breakOff(int peer, const std::string& reason, bool alone, std::deque<mkTransportEvent_t>& events) {
  if (broken_) return;
  broken_ = true;
  reason_ = reason;
  // The card must not go on with what is now over, whoever posts it: retries may last longer than this call.
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  if (const int r = ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE); r != 0)
    MK_PLUGIN_WARN("the connection to peer %d cannot be stopped: %s", peer, std::strerror(r));
  for (const uint64_t cookie : cookies_) events.push_back({MK_EVENT_SENT, peer, mkErrorTransport, 0, cookie});
  cookies_.clear();
  if (alone) events.push_back({MK_EVENT_ERROR, peer, mkErrorTransport, 0, 0});
}

mkQueueDescriptor_t Connection::handOut() {
  if (!cookies_.empty())
    fail(mkErrorInvalidUsage, "%zu writes are under way: the queue is handed out only when they have completed",
         cookies_.size());
  handedOut_ = true;
  mkQueueDescriptor_t d = {};
  d.structSize = sizeof(d);
  d.kind = MK_QUEUE_KIND_MLX5;
  d.version = MK_QUEUE_MLX5_VERSION;
  d.number = pair_->qp_num;
  d.entries = entries_;
  d.record = &records_[MLX5_SND_DBR];
  d.doorbell = doorbell_;
  d.entryCount = entryCount_;
  d.immediates = 0;
  d.firstIndex = posted_;
  d.maxBytes = kMaxBytes;
  return d;
}

}  // namespace mk::plugin::ibgda
