// Exported functions of communicators.
#include <cstring>

#include "api/guard.h"
#include "host/bootstrap.h"
#include "host/comm.h"
#include "host/platform.h"

namespace {

using namespace mk;

void requireWorld(int nranks, int rank) {
  if (nranks < 1) fail(mkErrorInvalidArgument, "nranks is %d; legal: 1 or more", nranks);
  if (rank < 0 || rank >= nranks) fail(mkErrorInvalidArgument, "rank is %d; legal: 0 to %d", rank, nranks - 1);
}

mkConfig_t readConfig(const mkConfig_t* config) {
  return config == nullptr ? mkConfig_t{} : readStruct(config, "config");
}

void initComm(mkComm_t* comm, int nranks, const mkUniqueId_t& id, int rank, const mkConfig_t* config) {
  requireWorld(nranks, rank);
  *comm = Comm::publish(Comm::init(nranks, rank, id, makeSettings(readConfig(config))));
}

template <class Body>
mkResult_t onComm(const char* function, mkComm_t handle, Body&& body) {
  return guarded(function, [&] {
    const std::shared_ptr<Comm> comm = Comm::find(handle);
    const BoundThread bound(comm->platform());
    body(*comm);
  });
}

}  // namespace

extern "C" {

mkResult_t mkGetUniqueId(mkUniqueId_t* id) {
  return guarded("mkGetUniqueId", [&] {
    requirePointer(id, "id", "a pointer to an mkUniqueId_t");
    Bootstrap::createId(id);
  });
}

mkResult_t mkCommInitRank(mkComm_t* comm, int nranks, mkUniqueId_t id, int rank) {
  return guarded("mkCommInitRank", [&] {
    requirePointer(comm, "comm", "a pointer to an mkComm_t");
    *comm = nullptr;
    initComm(comm, nranks, id, rank, nullptr);
  });
}

mkResult_t mkCommInitRankConfig(mkComm_t* comm, int nranks, mkUniqueId_t id, int rank, const mkConfig_t* config) {
  return guarded("mkCommInitRankConfig", [&] {
    requirePointer(comm, "comm", "a pointer to an mkComm_t");
    *comm = nullptr;
    initComm(comm, nranks, id, rank, config);
  });
}

mkResult_t mkCommInitAllgather(mkComm_t* comm, int nranks, int rank, mkAllgatherFn fn, void* user,
                               const mkConfig_t* config) {
  return guarded("mkCommInitAllgather", [&] {
    requirePointer(comm, "comm", "a pointer to an mkComm_t");
    *comm = nullptr;
    requireWorld(nranks, rank);
    if (fn == nullptr) fail(mkErrorInvalidArgument, "fn is NULL; legal: an allgather function");
    // Rank 0 makes the identifier; the gathering carries it to the others, or that there is none.
    struct {
      mkUniqueId_t id;
      int32_t result;
    } mine = {};
    std::string text;
    if (rank == 0) {
      try {
        Bootstrap::createId(&mine.id);
      } catch (const Error& e) {
        mine.result = e.code();
        text = e.what();
      } catch (const std::exception& e) {  // the others wait in the gathering
        mine.result = mkErrorSystem;
        text = e.what();
      }
    }
    std::vector<decltype(mine)> all(static_cast<size_t>(nranks));
    if (const int r = fn(&mine, all.data(), sizeof(mine), user); r != 0)
      fail(mkErrorSystem, "the allgather function returned %d; 0 is success", r);
    if (all[0].result != mkSuccess)
      fail(static_cast<mkResult_t>(all[0].result), "rank 0 could not make the identifier%s%s", text.empty() ? "" : ": ",
           text.c_str());
    initComm(comm, nranks, all[0].id, rank, config);
  });
}

mkResult_t mkCommQuery(mkComm_t comm, mkCommInfo_t* info) {
  return onComm("mkCommQuery", comm, [&](Comm& c) {
    mkCommInfo_t current = {};
    c.query(&current);
    writeStruct(info, current, "info");
  });
}

mkResult_t mkCommGetAsyncError(mkComm_t comm, mkResult_t* result) {
  return onComm("mkCommGetAsyncError", comm, [&](Comm& c) {
    requirePointer(result, "result", "a pointer to an mkResult_t");
    *result = c.asyncError();
  });
}

mkResult_t mkCommRevoke(mkComm_t comm) {
  return onComm("mkCommRevoke", comm, [](Comm& c) { c.revoke(); });
}

mkResult_t mkCommFinalize(mkComm_t comm) {
  return onComm("mkCommFinalize", comm, [](Comm& c) { c.finalize(); });
}

mkResult_t mkCommDestroy(mkComm_t comm) {
  return guarded("mkCommDestroy", [&] {
    const std::shared_ptr<Comm> c = Comm::find(comm);
    const BoundThread bound(c->platform());
    c->requireDestroyable();
    Comm::retire(comm)->destroy();
  });
}

mkResult_t mkCommAbort(mkComm_t comm) {
  return guarded("mkCommAbort", [&] {
    const std::shared_ptr<Comm> c = Comm::retire(comm);
    const BoundThread bound(c->platform());
    c->abort();
  });
}

mkResult_t mkCommReserve(mkComm_t comm, size_t bytes) {
  return onComm("mkCommReserve", comm, [&](Comm& c) { c.reserve(bytes); });
}

mkResult_t mkCommWindowRegister(mkComm_t comm, void* ptr, size_t bytes, mkWindow_t* window) {
  return onComm("mkCommWindowRegister", comm, [&](Comm& c) {
    requirePointer(window, "window", "a pointer to an mkWindow_t");
    *window = nullptr;
    *window = c.registerWindow(ptr, bytes);
  });
}

mkResult_t mkCommWindowDeregister(mkComm_t comm, mkWindow_t window) {
  return onComm("mkCommWindowDeregister", comm, [&](Comm& c) { c.deregisterWindow(window); });
}

mkResult_t mkMemAlloc(void** ptr, size_t bytes) {
  return guarded("mkMemAlloc", [&] {
    requirePointer(ptr, "ptr", "a pointer to a pointer");
    *ptr = nullptr;
    *ptr = allocate(bytes);
  });
}

mkResult_t mkMemFree(void* ptr) {
  return guarded("mkMemFree", [&] { release(ptr); });
}

}  // extern "C"
