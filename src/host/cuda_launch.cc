// Launches of the CUDA platform: choices, the launch itself, the order of streams and captures, and whether any is under way.
#include <algorithm>
#include <chrono>
#include <thread>

#include "host/ag_gemm_call.h"
#include "host/cuda_platform.h"
#include "host/gemm_ar_call.h"
#include "host/gemm_rs_call.h"
#include "host/log.h"
#include "kernels/ag_gemm.h"
#include "kernels/gemm_ar.h"
#include "kernels/gemm_rs.h"

namespace mk::cuda {

using protocol::OwnLayout;

namespace {

// Whether the stream is being captured, and in which capture.
cudaStreamCaptureStatus captureOf(cudaStream_t stream, unsigned long long* id) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t e = cudaStreamGetCaptureInfo(stream, &status, id);
  if (e == cudaErrorStreamCaptureImplicit) {
    static_cast<void>(cudaGetLastError());
    fail(mkErrorCapture,
         "the stream is the legacy default stream, and another stream is being captured; legal: another stream");
  }
  if (e == cudaErrorInvalidResourceHandle || e == cudaErrorInvalidValue || e == cudaErrorContextIsDestroyed) {
    static_cast<void>(cudaGetLastError());
    fail(mkErrorInvalidArgument, "stream %p is not a stream of the communicator's device", static_cast<void*>(stream));
  }
  check(e, "asking whether the stream is being captured");
  if (status == cudaStreamCaptureStatusInvalidated)
    fail(mkErrorCapture, "the capture of stream %p has been invalidated", static_cast<void*>(stream));
  return status;
}

// Turned tiles may be asked for by name, as mkTuneQuery tells it, or ruled out by that of others.
sched::GemmChoice turnedByName(sched::KernelShape* s, sched::GemmChoice choice) {
  if (choice.tileM == sched::kClusterRows) s->turnable = false;
  s->turned = s->turnable && s->m <= sched::mostTurnedRows(s->operation) && choice.tileM == sched::kTurnedCols &&
              (choice.tileN == 0 || sched::mayTurnBy(*s, choice.tileN));
  if (s->turned) {
    s->turnedRows = choice.tileN;
    choice.tileM = choice.tileN = 0;
  }
  return choice;
}

}  // namespace

// `s`: but for what all operations have from the place, the device and the choice.
sched::KernelChoice CudaPlatform::chooseKernel(sched::KernelShape s, const sched::Place& place,
                                               const sched::GemmChoice& choice) const {
  static_assert(sched::kTurnedCols == 64 && sched::kTurnedRows == 128 && sched::kLeastTurnedRows == 80 &&
                sched::kSlimCols == 112 && sched::kMediumCols == 224);  // as texts below say
  if (choice.tileM != 0 && choice.tileM != sched::kClusterRows)
    fail(mkErrorInvalidArgument, "tune.tileM is %u; legal on the CUDA platform: 0 (automatic), %u%s", choice.tileM,
         sched::kClusterRows,
         !s.turnable || s.m > sched::mostTurnedRows(s.operation) ? ""
         : s.operation == sched::Operation::agGemm ? ", or 64 with tileN 0, 128, or what of 80, 96 and 112 divides N"
                                                   : ", or 64 with tileN 0 or 128");
  if (choice.tileN != 0 && choice.tileN != 128 && choice.tileN != 256 &&
      ((choice.tileN != sched::kSlimCols && choice.tileN != sched::kMediumCols) || !s.mediumToo))
    fail(mkErrorInvalidArgument, "tune.tileN is %u; legal on the CUDA platform: 0 (automatic), 128, 256%s",
         choice.tileN, s.mediumToo ? ", 112, 224" : "");
  s.locals = place.locals;
  s.nodes = place.nodes;
  s.deviceClusters = clusters_;
  s.cacheBytes = cacheBytes_;
  s.tileN = choice.tileN;
  s.receiveAgents = choice.receiveAgents;
  sched::KernelChoice kernel = sched::chooseKernel(s);
  const uint32_t others = kernel.receiveClusters + kernel.copyClusters;
  if (others + 1 > clusters_)
    fail(mkErrorInvalidArgument, "the operation needs %u SMs here; config.maxSMs leaves it %u",
         (others + 1) * sched::kClusterBlocks, clusters_ * sched::kClusterBlocks);
  if (choice.computeAgents != 0) sched::limitClusters(s, choice.computeAgents, &kernel);
  return kernel;
}

template <class Call, class Plan>
void CudaPlatform::accept(Call* call, const sched::KernelChoice& kernel, const Plan& plan) const {
  call->kernel = kernel;
  call->plan = plan;
  call->plan.roles.compute = kernel.clusters * sched::kClusterBlocks;
  call->minSMs = (kernel.receiveClusters + kernel.copyClusters + 1) * sched::kClusterBlocks;
}

protocol::FailRecord CudaPlatform::launched(const std::string& why, const sched::KernelChoice& kernel,
                                            cudaStream_t stream) {
  if (!why.empty()) {
    static_cast<void>(cudaGetLastError());
    fail(mkErrorUnhandledCuda, "%s", why.c_str());
  }
  unsigned long long id = 0;
  if (stream == cudaStreamPerThread && captureOf(stream, &id) == cudaStreamCaptureStatusNone)
    check(cudaEventRecord(perThread_, stream), "marking the end of a launch");
  const std::lock_guard lock(viewMutex_);
  begun_ += sched::kClusterBlocks * (kernel.clusters + kernel.receiveClusters + kernel.copyClusters);
  return {};
}

void CudaPlatform::planGemmAr(const sched::GemmArShape& shape, const sched::GemmChoice& choice,
                              GemmArCall* call) const {
  sched::KernelShape s;
  s.operation = sched::Operation::gemmAr;
  s.m = shape.m;
  s.n = shape.n;
  s.k = call->operands.k;
  s.staged = shape.staged;
  s.turnable = kernels::isTurnable(call->operands, shape.place, shape.staged);
  const sched::GemmChoice wanted = turnedByName(&s, choice);
  const sched::KernelChoice kernel = chooseKernel(s, shape.place, wanted);
  sched::GemmArShape planned = shape;
  if (kernel.turned) std::swap(planned.m, planned.n);
  accept(call, kernel, sched::planGemmAr(planned, kernels::clusterChoice(kernel, choice), agents()));
  call->plan.roles.receive = kernel.receiveClusters * sched::kClusterBlocks;
}

protocol::FailRecord CudaPlatform::runGemmAr(const GemmArCall& call, mkStream_t stream) {
  kernels::GemmArOperands op = {call.operands, {}};
  std::copy(call.peerC.begin(), call.peerC.end(), op.peerC);
  return launched(kernels::launchGemmAr(memory_, call.plan, call.kernel, call.hash, op, stream), call.kernel, stream);
}

void CudaPlatform::planGemmRs(const sched::GemmRsShape& shape, const sched::GemmChoice& choice,
                              GemmRsCall* call) const {
  sched::KernelShape s;
  s.operation = sched::Operation::gemmRs;
  s.m = shape.m;
  s.n = shape.n;
  s.k = call->operands.k;
  s.spannable = kernels::isLean(call->operands, shape.place);
  s.turnable = kernels::isTurnable(call->operands, shape.place);
  const sched::GemmChoice wanted = turnedByName(&s, choice);
  const sched::KernelChoice kernel = chooseKernel(s, shape.place, wanted);
  accept(call, kernel, sched::planGemmRs(shape, kernels::clusterChoice(kernel, choice), agents()));
  call->plan.roles.receive = kernel.receiveClusters * sched::kClusterBlocks;
}

protocol::FailRecord CudaPlatform::runGemmRs(const GemmRsCall& call, mkStream_t stream) {
  return launched(kernels::launchGemmRs(memory_, call.plan, call.kernel, call.hash, call.operands, stream), call.kernel,
                  stream);
}

void CudaPlatform::planAgGemm(const sched::AgGemmShape& shape, const sched::GemmChoice& choice,
                              AgGemmCall* call) const {
  sched::KernelShape s;
  s.operation = sched::Operation::agGemm;
  s.m = shape.m;
  s.n = shape.n;
  s.k = shape.k;
  s.spannable = true;
  s.turnable = s.mediumToo = kernels::isTurnable(call->operands, shape.place);
  const sched::GemmChoice wanted = turnedByName(&s, choice);
  const sched::KernelChoice kernel = chooseKernel(s, shape.place, wanted);
  accept(call, kernel, sched::planAgGemm(shape, kernels::clusterChoice(kernel, choice), agents()));
  if (call->plan.sliceCols == 0) call->kernel.paceNs = 0;  // the caller's chunks: whole rows, which nothing holds up
  if (call->plan.roles.move != 0) call->plan.roles.move = kernel.movers;
}

protocol::FailRecord CudaPlatform::runAgGemm(const AgGemmCall& call, mkStream_t stream) {
  kernels::AgGemmOperands op = {call.operands, {}, call.gatheredStride};
  std::copy(call.gathered.begin(), call.gathered.end(), op.gathered);
  return launched(kernels::launchAgGemm(memory_, call.plan, call.kernel, call.hash, op, stream), call.kernel, stream);
}

bool CudaPlatform::lastStream(cudaStream_t* stream) const {
  const std::lock_guard lock(viewMutex_);
  *stream = last_;
  return launched_;
}

bool CudaPlatform::follow(mkStream_t stream) {
  unsigned long long id = 0;
  if (captureOf(stream, &id) == cudaStreamCaptureStatusActive) {
    if (captureId_ == id && captured_ != stream) {
      check(cudaEventRecord(order_, captured_), "ordering two captured streams");
      check(cudaStreamWaitEvent(stream, order_, 0), "ordering two captured streams");
    }
    const std::lock_guard lock(viewMutex_);
    captureId_ = id;
    captured_ = stream;
    return true;
  }
  cudaStream_t last = nullptr;
  if (lastStream(&last) && last != stream) {
    unsigned long long other = 0;
    if (captureOf(last, &other) == cudaStreamCaptureStatusNone) {
      check(cudaEventRecord(order_, last), "ordering two streams");
      check(cudaStreamWaitEvent(stream, order_, 0), "ordering two streams");
    }
  }
  const std::lock_guard lock(viewMutex_);
  launched_ = true;
  last_ = stream;
  return false;
}

void CudaPlatform::requireNoCapture(const char* what) const {
  cudaStream_t last = nullptr;
  if (lastStream(&last) && stateOf(last) == StreamState::capturing)
    fail(mkErrorCapture, "%s while stream %p, which has operations of this communicator, is being captured", what,
         static_cast<void*>(last));
}

// Of a stream that may be gone, or be another one on another thread.  A stream that is being captured must not be asked for more.
CudaPlatform::StreamState CudaPlatform::stateOf(cudaStream_t stream) const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaError_t e = cudaSuccess;
  if (stream == cudaStreamPerThread) {
    e = cudaEventQuery(perThread_);
  } else {
    e = cudaStreamIsCapturing(stream, &status);
    if (e == cudaSuccess && status == cudaStreamCaptureStatusActive) return StreamState::capturing;
    if (e == cudaSuccess && status == cudaStreamCaptureStatusNone) e = cudaStreamQuery(stream);
  }
  static_cast<void>(cudaGetLastError());
  if (e == cudaSuccess) return status == cudaStreamCaptureStatusNone ? StreamState::empty : StreamState::unknown;
  if (e == cudaErrorInvalidResourceHandle || e == cudaErrorContextIsDestroyed || e == cudaErrorInvalidValue)
    return StreamState::lost;
  // Also the legacy stream beside somebody's capture.
  if (e == cudaErrorNotReady || e == cudaErrorStreamCaptureImplicit) return StreamState::unknown;
  check(e, "the device has failed");
  return StreamState::unknown;
}

bool CudaPlatform::busy(bool strict) {
  try {
    const OnDevice on(device_);
    cudaStream_t last = nullptr;
    const StreamState state = lastStream(&last) ? stateOf(last) : StreamState::empty;
    refresh(true);
    {
      const std::lock_guard lock(viewMutex_);
      // What the stream still has to do may be the caller's own.  With graphs the count of blocks does not tell; of a stream that
      // is gone the caller has seen the end.
      if (state != StreamState::empty &&
          (captureId_ != 0 ? strict && state != StreamState::lost : view_[OwnLayout::blocksLeft] < begun_))
        return true;
    }
    if (running()) return true;
    // A block is counted before its last stores, to peers too, have arrived: behind a full link that takes some microseconds.
    if (state != StreamState::empty) std::this_thread::sleep_for(std::chrono::microseconds(100));
    return false;
  } catch (const Error& e) {
    if (e.code() == mkErrorTimeout) return true;
    MK_WARN(launch, "%s", e.what());
    return false;  // nothing runs on a device that has failed
  }
}

}  // namespace mk::cuda
