// The functions that libfabric exports, and what providers say of themselves.  See fabric.h.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "fabric.h"

namespace test::fabric {

int realMrMode = 0;

const Real& real() {
  static const Real found = [] {
    void* object = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    if (object == nullptr) {
      std::fprintf(stderr, "fabric: %s\n", dlerror());
      std::abort();
    }
    const auto find = [&](const char* name) { return dlsym(object, name); };
    return Real{reinterpret_cast<decltype(&::fi_getinfo)>(find("fi_getinfo")),
                reinterpret_cast<decltype(&::fi_freeinfo)>(find("fi_freeinfo")),
                reinterpret_cast<decltype(&::fi_dupinfo)>(find("fi_dupinfo")),
                reinterpret_cast<decltype(&::fi_fabric)>(find("fi_fabric")),
                reinterpret_cast<decltype(&::fi_version)>(find("fi_version")),
                reinterpret_cast<decltype(&::fi_strerror)>(find("fi_strerror"))};
  }();
  return found;
}

namespace {

void handler(int) {}

// What PSM and the shm provider do when they are loaded and opened.
void installHandlers() {
  if (!asked("handlers")) return;
  for (const int number : {SIGTERM, SIGSEGV, SIGBUS, SIGINT}) signal(number, handler);
}
[[gnu::constructor]] void atLoad() { installHandlers(); }

// What follows the name in MK_TEST_FABRIC ("" after a bare name), or null.
const char* settingOf(const char* name) {
  const char* list = std::getenv("MK_TEST_FABRIC");
  const size_t length = std::strlen(name);
  for (const char* at = list; at != nullptr && *at != '\0';) {
    if (std::strncmp(at, name, length) == 0 && std::strchr("=,", at[length]) != nullptr)
      return at + length + (at[length] == '=' ? 1 : 0);
    at = std::strchr(at, ',');
    if (at != nullptr) ++at;
  }
  return nullptr;
}

std::string innerProvider() {
  const char* name = std::getenv("MK_TEST_FABRIC_INNER");
  return name != nullptr && *name != '\0' ? name : "net";
}

void rename(char*& text, const std::string& to) {
  std::free(text);
  text = strdup(to.c_str());
}

// EFA's own, on libfabric's efa-direct where that differs.
constexpr int kEfaMrMode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

std::string realDomain, realFabric;

int efaInfo(uint32_t version, uint64_t flags, const fi_info* hints, fi_info** list) {
  if (hints == nullptr || hints->fabric_attr->prov_name == nullptr ||
      std::strcmp(hints->fabric_attr->prov_name, "efa") != 0)
    return -FI_ENODATA;
  const bool gpu = (hints->caps & FI_HMEM) != 0;
  const bool searching = hints->caps != 0;  // otherwise: whether there is anything at all
  const int modes = kEfaMrMode | (gpu ? FI_MR_HMEM : 0) | (asked("endpoint") ? FI_MR_ENDPOINT : 0);
  if (searching && ((hints->domain_attr->mr_mode & modes) != modes || (hints->mode & FI_CONTEXT2) == 0 ||
                    hints->domain_attr->cq_data_size > 4 || hints->ep_attr->type != FI_EP_RDM ||
                    (hints->tx_attr->msg_order | hints->tx_attr->comp_order) != 0))
    return -FI_ENODATA;
  fi_info* inner = real().dupinfo(hints);
  rename(inner->fabric_attr->prov_name, innerProvider());
  inner->caps &= ~static_cast<uint64_t>(FI_HMEM | FI_SOURCE);
  inner->domain_attr->mr_mode = FI_MR_VIRT_ADDR;
  inner->domain_attr->cq_data_size = 8;
  const int result = real().getinfo(std::min(version, real().version()), nullptr, nullptr, flags, inner, list);
  real().freeinfo(inner);
  if (result != 0) return result;
  // One device, the provider's first.
  fi_info* const first = *list;
  if (first->next != nullptr) real().freeinfo(std::exchange(first->next, nullptr));
  realMrMode = first->domain_attr->mr_mode;
  realDomain = first->domain_attr->name;
  realFabric = first->fabric_attr->name;
  rename(first->fabric_attr->prov_name, "efa");
  rename(first->fabric_attr->name, "efa-direct");
  rename(first->domain_attr->name, "rdmap0s1-rdm");
  first->caps |= hints->caps;
  first->mode = first->tx_attr->mode = FI_CONTEXT2;
  first->domain_attr->mr_mode = modes;
  first->domain_attr->cq_data_size = 4;
  first->ep_attr->max_msg_size = number("most", size_t{1} << 30);
  first->tx_attr->msg_order = first->rx_attr->msg_order = 0;
  return 0;
}

int closeFabric(fid* object);
int domainOf(fid_fabric* fabric, fi_info* info, fid_domain** domain, void* context);

struct Fabric {
  fid_fabric self = {};
  fid_fabric* inner = nullptr;
};

fi_ops fabricFidOps = {sizeof(fi_ops), closeFabric, nullptr, nullptr, nullptr, nullptr, nullptr};
fi_ops_fabric fabricOps = [] {
  fi_ops_fabric made = {};
  made.size = sizeof(made);
  made.domain = domainOf;
  return made;
}();

int closeFabric(fid* object) {
  auto* const fabric = reinterpret_cast<Fabric*>(object);
  const int result = fi_close(&fabric->inner->fid);
  delete fabric;
  return result;
}

int domainOf(fid_fabric* fabric, fi_info* info, fid_domain** domain, void* context) {
  installHandlers();
  fi_info* const copy = real().dupinfo(info);
  if (efa()) {
    rename(copy->fabric_attr->prov_name, innerProvider());
    copy->domain_attr->mr_mode = realMrMode;
    copy->domain_attr->cq_data_size = 8;
    copy->caps &= ~static_cast<uint64_t>(FI_HMEM | FI_SOURCE);
    copy->mode = copy->tx_attr->mode = 0;
    rename(copy->domain_attr->name, realDomain);
    rename(copy->fabric_attr->name, realFabric);
  }
  fid_domain* inner = nullptr;
  const int result = reinterpret_cast<Fabric*>(fabric)->inner->ops->domain(reinterpret_cast<Fabric*>(fabric)->inner,
                                                                           copy, &inner, context);
  real().freeinfo(copy);
  return result != 0 ? result : openDomain(inner, domain);
}

}  // namespace

bool asked(const char* name) { return settingOf(name) != nullptr; }

uint64_t number(const char* name, uint64_t otherwise) {
  const char* value = settingOf(name);
  return value != nullptr && *value != '\0' && *value != ',' ? std::strtoull(value, nullptr, 10) : otherwise;
}

int breach(const char* fmt, ...) {
  char text[512];
  va_list list;
  va_start(list, fmt);
  std::vsnprintf(text, sizeof(text), fmt, list);
  va_end(list);
  std::fprintf(stderr, "fabric: process %d: %s\n", getpid(), text);
  return -FI_EINVAL;
}

uint32_t hashOf(const void* name, size_t bytes) {
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const uint8_t*>(name)[i]) * 16777619u;
  return hash;
}

}  // namespace test::fabric

using test::fabric::real;

extern "C" {

int fi_getinfo(uint32_t version, const char* node, const char* service, uint64_t flags, const fi_info* hints,
               fi_info** info) {
  test::fabric::installHandlers();
  if (test::fabric::efa()) return test::fabric::efaInfo(version, flags, hints, info);
  // A provider that carries less than we need is one that is asked for too much.
  if (test::fabric::asked("fixeddata") && hints != nullptr && hints->domain_attr->cq_data_size > 4) return -FI_ENODATA;
  if (test::fabric::asked("fixeddata") && hints != nullptr && (hints->caps & FI_SOURCE) != 0) return -FI_ENODATA;
  return real().getinfo(std::min(version, real().version()), node, service, flags, hints, info);
}

void fi_freeinfo(fi_info* info) { real().freeinfo(info); }

fi_info* fi_dupinfo(const fi_info* info) { return real().dupinfo(info); }

int fi_fabric(fi_fabric_attr* attributes, fid_fabric** fabric, void* context) {
  using namespace test::fabric;
  char *const provider = attributes->prov_name, *const name = attributes->name;
  std::string inner = innerProvider();
  if (efa()) attributes->prov_name = inner.data(), attributes->name = realFabric.data();
  auto made = std::make_unique<Fabric>();
  const int result = real().fabric(attributes, &made->inner, context);
  attributes->prov_name = provider;
  attributes->name = name;
  if (result != 0) return result;
  made->self.fid = {FI_CLASS_FABRIC, context, &fabricFidOps};
  made->self.ops = &fabricOps;
  *fabric = &made.release()->self;
  return 0;
}

uint32_t fi_version() {
  const uint64_t minor = test::fabric::number("version", 0);
  return minor != 0 ? FI_VERSION(1, static_cast<uint32_t>(minor)) : real().version();
}

const char* fi_strerror(int error) { return real().strerror(error); }

}  // extern "C"
