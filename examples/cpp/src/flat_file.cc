#include "flat_file.h"

#include <algorithm>
#include <sstream>

namespace ringflow {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is little-endian and read as it is");

constexpr const char* kName = "ringflow-flat";
constexpr const char* kVersion = "1";
constexpr std::size_t kLongestHeader = 1 << 16;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

}  // namespace

FlatFile::FlatFile(const std::string& path, const Model& model) : path_(path), stream_(path, std::ios::binary) {
  if (!stream_) fail("cannot be opened; is it there?");
  stream_.seekg(0, std::ios::end);
  const std::streamoff size = stream_.tellg();
  if (!stream_ || size < 0) fail("cannot be read");  // a folder, for one
  bytes_left_ = static_cast<std::uint64_t>(size);
  stream_.seekg(0);
  readHeader(model);
}

bool FlatFile::read(Event& event) {
  if (num_read_ == num_events_) {
    if (bytes_left_ > 0) fail("goes on after its " + std::to_string(num_events_) + " events; write it again");
    return false;
  }
  std::uint32_t rows[2] = {0, 0};
  readBytes(&event.number, sizeof event.number);
  readBytes(rows, sizeof rows);
  readTable(event.track, rows[0], columns_[0]);
  readTable(event.calorimeter, rows[1], columns_[1]);
  ++num_read_;
  return true;
}

void FlatFile::readHeader(const Model& model) {
  std::string line(std::min<std::uint64_t>(bytes_left_, kLongestHeader), '\0');
  stream_.read(line.data(), static_cast<std::streamsize>(line.size()));
  const std::size_t end = line.find('\n');
  std::istringstream words(line.substr(0, end));
  std::string name, version, events, track, calorimeter;
  words >> name >> version >> events >> track >> calorimeter;
  if (!stream_ || end == std::string::npos || name != kName) {
    fail("is not a flat file of events; write_flat.py makes one");
  }
  if (version != kVersion) fail("is of version " + version + ", this program reads " + kVersion);
  if (events.empty() || events.size() > 18 || events.find_first_not_of("0123456789") != std::string::npos) {
    fail("has '" + events + "' events; write it again");
  }
  num_events_ = std::stoull(events);
  requireColumns(track, model.track());
  requireColumns(calorimeter, model.calorimeter());
  columns_[0] = model.track().columns.size();
  columns_[1] = model.calorimeter().columns.size();
  stream_.seekg(static_cast<std::streamoff>(end + 1));
  bytes_left_ -= end + 1;
}

/// `given` is name=column,column,...
void FlatFile::requireColumns(const std::string& given, const Input& wanted) const {
  const std::size_t equals = given.find('=');
  const std::string name = given.substr(0, equals);
  if (equals == std::string::npos || name != wanted.name) {
    fail("has '" + name + "' where the model takes " + wanted.name + "; write it for this model");
  }
  const std::vector<std::string> columns = split(given.substr(equals + 1), ',');
  if (columns.size() != wanted.columns.size()) {
    fail("has " + std::to_string(columns.size()) + " columns of " + name + ", the model takes " +
         std::to_string(wanted.columns.size()) + "; write it for this model");
  }
  for (std::size_t k = 0; k < columns.size(); ++k) {
    if (columns[k] != wanted.columns[k].name) {
      fail("has the " + name + " column " + columns[k] + " where the model takes " + wanted.columns[k].name +
           "; write it for this model");
    }
  }
}

void FlatFile::readTable(Table& table, std::uint32_t rows, std::size_t columns) {
  const std::uint64_t values = std::uint64_t{rows} * columns;
  if (values > bytes_left_ / sizeof(float)) readBytes(nullptr, bytes_left_ + 1);  // before memory is asked for
  table.rows = rows;
  table.values.resize(values);
  readBytes(table.values.data(), values * sizeof(float));
}

void FlatFile::readBytes(void* to, std::uint64_t count) {
  if (count > bytes_left_) {
    fail("ends in event " + std::to_string(num_read_ + 1) + " of " + std::to_string(num_events_) + "; write it again");
  }
  if (count == 0) return;
  stream_.read(static_cast<char*>(to), static_cast<std::streamsize>(count));
  if (!stream_) fail("cannot be read");
  bytes_left_ -= count;
}

void FlatFile::fail(const std::string& reason) const { throw Error(path_ + " " + reason); }

}  // namespace ringflow
