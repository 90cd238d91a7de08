// See hub_checks.h.
#include "host/hub_checks.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

namespace mk {
namespace {

constexpr size_t maxListed = 16;  // lines or nodes in one error text

using Setting = std::pair<std::string_view, std::string_view>;

std::vector<Setting> splitSettings(const std::string& text) {
  std::vector<Setting> result;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const size_t equals = std::min(line.find('='), line.size());
    result.emplace_back(line.substr(0, equals), line.substr(std::min(equals + 1, line.size())));
  }
  return result;
}

std::string valueOf(const std::vector<Setting>& settings, std::string_view name) {
  const auto found = std::find_if(settings.begin(), settings.end(), [&](const Setting& s) { return s.first == name; });
  return found == settings.end() ? "nothing" : "\"" + std::string(found->second) + "\"";
}

void compareSettings(const Hello& a, const Hello& b) {
  if (a.settings == b.settings) return;
  const auto left = splitSettings(a.settings);
  const auto right = splitSettings(b.settings);
  std::vector<std::string_view> names;
  for (const auto* list : {&left, &right})
    for (const Setting& s : *list)
      if (std::find(names.begin(), names.end(), s.first) == names.end()) names.push_back(s.first);
  std::string differences;
  size_t count = 0;
  for (const std::string_view name : names) {
    const std::string mine = valueOf(left, name);
    const std::string theirs = valueOf(right, name);
    if (mine == theirs) continue;
    if (++count > maxListed) continue;
    differences += format("%s%.*s is %s on %s and %s on %s", count == 1 ? "" : "; ", static_cast<int>(name.size()),
                          name.data(), mine.c_str(), rankName(a).c_str(), theirs.c_str(), rankName(b).c_str());
  }
  if (count > maxListed) differences += format("; and %zu more", count - maxListed);
  if (count > 0)
    fail(mkErrorInvalidUsage, "settings that must be the same on all ranks differ: %s", differences.c_str());
}

std::string hex(const std::array<uint8_t, 16>& bytes) {
  std::string text;
  for (const uint8_t b : bytes) text += format("%02x", b);
  return text;
}

}  // namespace

std::string rankName(const Hello& hello) { return rankName(hello.rank, hello.host, hello.pid); }

void compareRanks(const std::vector<const Hello*>& present) {
  for (const Hello* hello : present) compareSettings(*present.front(), *hello);
  using Device = std::array<uint8_t, 16>;
  std::map<Device, std::vector<const Hello*>> users;
  for (const Hello* hello : present) {
    if (hello->deviceId == Device{}) continue;
    for (const Hello* other : users[hello->deviceId])
      if (other->hostId == hello->hostId || other->host == hello->host)
        fail(mkErrorInvalidUsage, "%s and %s use the same GPU (%s); every rank needs a GPU of its own",
             rankName(*other).c_str(), rankName(*hello).c_str(), hex(hello->deviceId).c_str());
    users[hello->deviceId].push_back(hello);
  }
}

Welcome arrangeRanks(const std::vector<const Hello*>& all) {
  Welcome welcome;
  std::map<std::string, int> nodeOf;
  std::vector<std::vector<int>> members;
  for (const Hello* hello : all) {
    const auto [entry, isNew] = nodeOf.try_emplace(hello->hostId, static_cast<int>(members.size()));
    if (isNew) members.emplace_back();
    auto& node = members[static_cast<size_t>(entry->second)];
    PeerInfo peer;
    peer.rank = hello->rank;
    peer.node = entry->second;
    peer.localRank = static_cast<int>(node.size());
    peer.hostId = hello->hostId;
    peer.host = hello->host;
    peer.pid = hello->pid;
    node.push_back(hello->rank);
    welcome.peers.push_back(std::move(peer));
    welcome.inHubProcess.push_back(hello->inHubProcess);
  }
  welcome.nodes = static_cast<int>(members.size());
  welcome.ranksPerNode = static_cast<int>(members.front().size());
  const bool equal = std::all_of(members.begin(), members.end(),
                                 [&](const std::vector<int>& m) { return m.size() == members.front().size(); });
  if (equal) return welcome;
  std::string text;
  for (size_t i = 0; i < members.size() && i < maxListed; ++i) {
    const Hello& first = *all[static_cast<size_t>(members[i].front())];
    text += format("%snode %zu (host %s, identity %s) has %zu: %s", i == 0 ? "" : "; ", i, first.host.c_str(),
                   first.hostId.c_str(), members[i].size(), rankList(members[i], 60).c_str());
  }
  if (members.size() > maxListed) text += format("; and %zu more nodes", members.size() - maxListed);
  fail(mkErrorInvalidUsage, "every node must have the same number of ranks: %s", text.c_str());
}

// Work proceeds by epochs and in them by stages, and a stage waits for earlier ones only: the earliest one reported is the
// root, the others follow from it.  Within one stage a rank that waits itself is a link of the chain rather than its end.
size_t chooseReport(const std::vector<RankReport>& reports) {
  std::set<int> reporters;
  for (const RankReport& r : reports) reporters.insert(r.rank);
  const auto key = [&](const RankReport& r) {
    const int missing = r.report.missingRank;
    const int doubt = missing < 0 ? 2 : reporters.count(missing) != 0 ? 1 : 0;
    return std::make_tuple(r.report.epoch, r.report.stageOrder, doubt, r.rank);
  };
  const auto best = std::min_element(reports.begin(), reports.end(),
                                     [&](const RankReport& a, const RankReport& b) { return key(a) < key(b); });
  return static_cast<size_t>(best - reports.begin());
}

}  // namespace mk
