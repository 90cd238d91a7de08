// One reliable connection to one peer.  The endpoint asks for requests and is told of completions by their numbers.
#pragma once

#include <cstdint>

#include "devices.h"
#include "requests.h"
#include "wireup.h"

namespace mk::plugin::ibverbs {

class Connection {
 public:
  // Ready to be told of the other end.  requests: how many may be under way.
  Connection(const OpenDevice& device, ibv_cq* queue, uint32_t requests);

  ConnectionAddress address() const { return {pair_->qp_num, sequence_}; }
  // Takes and sends writes from here on.
  void connect(const OpenDevice& device, const PortAddress& peer, const RdmaPath& path, const ConnectionAddress& other,
               const Settings& settings);

  // 0, or the error number; then some of the requests may have been taken all the same.
  int post(ibv_send_wr* requests);
  // After it the device neither reads nor writes for this connection.
  void close() { pair_.reset(); }
  bool closed() const { return pair_ == nullptr; }
  bool is(const ibv_qp* pair) const { return pair_.get() == pair; }

  SendLedger ledger;

 private:
  PairPtr pair_;
  uint32_t sequence_ = 0;
};

}  // namespace mk::plugin::ibverbs
