// The little JSON that the properties of a model need.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ringflow {

/// A value; which of the members is filled depends on what it is.
struct Json {
  std::string text;                                    // of a string, or the word of a number, true, false or null
  std::vector<Json> items;                             // of a list
  std::vector<std::pair<std::string, Json>> members;   // of an object, in their order

  /// A member of an object; an Error if there is none of this name.
  const Json& at(const std::string& name) const;
};

/// Throws Error if the text is not one JSON value.
Json parseJson(const std::string& text);

}  // namespace ringflow
