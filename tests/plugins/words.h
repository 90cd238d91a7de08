// Texts that must contain others, without the matchers, which have other names in Catch2 2 and 3.
#pragma once

#include <string>
#include <vector>

namespace test {

// "" if all words are in the text; else what is missing where.  CHECK(missing(text, {...}) == "") shows it.
inline std::string missing(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    if (text.find(word) == std::string::npos) return "'" + word + "' is not in '" + text + "'";
  return "";
}

}  // namespace test
