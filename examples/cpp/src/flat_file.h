// Events in a flat file; README.md says how it is laid out.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "event.h"
#include "model.h"

namespace ringflow {

class FlatFile {
public:
  /// Throws Error if it is not such a file, or does not have the columns of the model.
  FlatFile(const std::string& path, const Model& model);

  std::uint64_t numEvents() const { return num_events_; }

  /// The next event; false after the last one. Throws Error where the file ends too early or goes on too long.
  bool read(Event& event);

private:
  void readHeader(const Model& model);
  void requireColumns(const std::string& given, const Input& wanted) const;
  void readTable(Table& table, std::uint32_t rows, std::size_t columns);
  void readBytes(void* to, std::uint64_t count);
  [[noreturn]] void fail(const std::string& reason) const;

  std::string path_;
  std::ifstream stream_;
  std::uint64_t bytes_left_ = 0;
  std::uint64_t num_events_ = 0;
  std::uint64_t num_read_ = 0;
  std::size_t columns_[2] = {0, 0};
};

}  // namespace ringflow
