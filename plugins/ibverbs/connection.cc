// See connection.h.
#include "connection.h"

#include <cerrno>
#include <cstring>

#include "common/failure.h"

namespace mk::plugin::ibverbs {

Connection::Connection(const OpenDevice& device, ibv_cq* queue, uint32_t requests) : ledger(requests) {
  ibv_qp_init_attr init = {};
  init.qp_type = IBV_QPT_RC;
  init.send_cq = init.recv_cq = queue;
  init.cap.max_send_wr = requests;
  init.cap.max_send_sge = 1;
  init.cap.max_recv_wr = 1;
  init.cap.max_recv_sge = 1;
  init.cap.max_inline_data = sizeof(uint64_t);
  pair_.reset(ibv_create_qp(device.domain.get(), &init));
  if (pair_ == nullptr)
    failErrno(errno, format("%s gives no reliable connection of %u requests", device.info.device.c_str(), requests));
  const Token random = randomToken();
  std::memcpy(&sequence_, random.data(), sizeof(sequence_));
  sequence_ &= 0xffffff;
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = device.info.port;
  attributes.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  const int error =
      ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) failErrno(error, "a reliable connection on " + device.info.name());
}

void Connection::connect(const OpenDevice& device, const PortAddress& peer, const RdmaPath& path,
                         const ConnectionAddress& other, const Settings& settings) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = path.mtu;
  attributes.dest_qp_num = other.number;
  attributes.rq_psn = other.sequence;
  attributes.max_dest_rd_atomic = 1;
  attributes.min_rnr_timer = 12;
  attributes.ah_attr = device.routeTo(peer, path.global, settings);
  int error = ibv_modify_qp(pair_.get(), &attributes,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error == 0) {
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = static_cast<uint8_t>(settings.timeout);
    attributes.retry_cnt = static_cast<uint8_t>(settings.retryCount);
    attributes.rnr_retry = 7;
    attributes.sq_psn = sequence_;
    attributes.max_rd_atomic = 1;
    error = ibv_modify_qp(
        pair_.get(), &attributes,
        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  }
  if (error != 0)
    failErrno(error, format("%s cannot connect to %s", device.info.name().c_str(), describe(peer).c_str()));
}

int Connection::post(ibv_send_wr* requests) {
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(pair_.get(), requests, &bad);
}

}  // namespace mk::plugin::ibverbs
