#include "json.h"

#include <cctype>

#include "ort.h"

namespace ringflow {
namespace {

constexpr int kDeepest = 64;  // a hostile file must not exhaust the stack

class Parser {
public:
  explicit Parser(const std::string& text) : text_(text) {}

  Json whole() {
    Json value = parse(0);
    skipSpace();
    if (place_ != text_.size()) fail();
    return value;
  }

private:
  Json parse(int depth) {
    if (depth > kDeepest) fail();
    skipSpace();
    Json value;
    if (accept('{')) {
      for (bool more = !accept('}'); more; more = !closes('}')) {
        std::string name = string();
        require(':');
        value.members.emplace_back(std::move(name), parse(depth + 1));
      }
    } else if (accept('[')) {
      for (bool more = !accept(']'); more; more = !closes(']')) value.items.push_back(parse(depth + 1));
    } else if (peek() == '"') {
      value.text = string();
    } else {
      value.text = word();
    }
    return value;
  }

  /// True at the closing bracket; a comma means that there is more.
  bool closes(char bracket) {
    if (accept(bracket)) return true;
    require(',');
    return false;
  }

  std::string word() {
    const std::size_t start = place_;
    for (char next = peek(); std::isalnum(static_cast<unsigned char>(next)) || next == '+' || next == '-' || next == '.';
         next = peek()) {
      ++place_;
    }
    if (place_ == start) fail();
    return text_.substr(start, place_ - start);
  }

  std::string string() {
    require('"');
    std::string read;
    for (char next = take(); next != '"'; next = take()) read += next == '\\' ? escaped() : std::string(1, next);
    return read;
  }

  std::string escaped() {
    static const std::string codes = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
    const char code = take();
    if (code == 'u') return utf8(hexadecimal());
    const std::size_t place = codes.find(code);
    if (place == std::string::npos) fail();
    return std::string(1, meanings[place]);
  }

  unsigned hexadecimal() {
    unsigned value = 0;
    for (int digit = 0; digit < 4; ++digit) {
      const char next = take();
      if (!std::isxdigit(static_cast<unsigned char>(next))) fail();
      value = 16 * value + static_cast<unsigned>(std::stoi(std::string(1, next), nullptr, 16));
    }
    return value;
  }

  /// Halves of a surrogate pair come out separately: names and units have none.
  static std::string utf8(unsigned code) {
    if (code < 0x80) return {static_cast<char>(code)};
    if (code < 0x800) return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
    return {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3F)),
            static_cast<char>(0x80 | (code & 0x3F))};
  }

  void skipSpace() {
    while (peek() != 0 && std::isspace(static_cast<unsigned char>(peek()))) ++place_;
  }

  bool accept(char wanted) {
    skipSpace();
    if (peek() != wanted) return false;
    ++place_;
    return true;
  }

  void require(char wanted) {
    if (!accept(wanted)) fail();
  }

  char peek() const { return place_ < text_.size() ? text_[place_] : '\0'; }

  char take() {
    if (place_ >= text_.size()) fail();
    return text_[place_++];
  }

  [[noreturn]] void fail() const { throw Error("not JSON at character " + std::to_string(place_)); }

  const std::string& text_;
  std::size_t place_ = 0;
};

}  // namespace

const Json& Json::at(const std::string& name) const {
  for (const auto& [key, value] : members) {
    if (key == name) return value;
  }
  throw Error("it has no '" + name + "'");
}

Json parseJson(const std::string& text) { return Parser(text).whole(); }

}  // namespace ringflow
