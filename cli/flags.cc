#include "flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>

namespace tilewise::cli {
namespace {

template <class T>
bool parse(const std::string& text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end && !text.empty();
}

[[noreturn]] void refuse(const std::string& name, const std::string& text,
                         const std::string& limit) {
  throw UsageError(fmt::format("--{}: is \"{}\", must be {}", name, text, limit));
}

}  // namespace

Flags::Flags(CLI::App& program, const std::string& name, const std::string& summary)
    : app_(program.add_subcommand(name, summary)) {}

CLI::Option* Flags::remember(const std::string& name, CLI::Option* option) {
  option->group(group_);
  options_[name] = option;
  return option;
}

void Flags::add_value(const std::string& name, const std::string& placeholder,
                      const std::string& help) {
  remember(name, app_->add_option("--" + name, values_[name], help))->type_name(placeholder);
}

void Flags::add_list(const std::string& name, const std::string& placeholder,
                     const std::string& help) {
  remember(name, app_->add_option("--" + name, values_[name], help))
      ->join(',')
      ->type_name(placeholder);
}

void Flags::add_switch(const std::string& name, const std::string& help) {
  remember(name, app_->add_flag("--" + name, help))->disable_flag_override();
}

void Flags::add_switch_with_value(const std::string& name, const std::string& fallback,
                                  const std::string& help) {
  remember(name, app_->add_flag("--" + name + "{" + fallback + "}", values_[name], help));
}

void Flags::set_footer(const std::string& text) { app_->footer(text); }

bool Flags::chosen() const { return app_->parsed(); }

std::string Flags::command() const { return app_->get_name(); }

bool Flags::given(const std::string& name) const {
  const auto option = options_.find(name);
  return option != options_.end() && option->second->count() > 0;
}

std::string Flags::text(const std::string& name) const {
  return given(name) ? values_.at(name) : std::string();
}

std::int64_t Flags::integer(const std::string& name, std::int64_t low, std::int64_t high,
                            std::int64_t fallback) const {
  if (!given(name)) return fallback;
  std::int64_t value = 0;
  if (!parse(text(name), value) || value < low || value > high) {
    refuse(name, text(name), fmt::format("a whole number from {} to {}", low, high));
  }
  return value;
}

std::uint64_t Flags::natural(const std::string& name, std::uint64_t high) const {
  std::uint64_t value = 0;
  if (given(name) && (!parse(text(name), value) || value > high)) {
    refuse(name, text(name), fmt::format("a whole number from 0 to {}", high));
  }
  return value;
}

double Flags::number(const std::string& name, double fallback) const {
  if (!given(name)) return fallback;
  double value = 0;
  if (!parse(text(name), value) || !std::isfinite(value)) {
    refuse(name, text(name), "a finite number");
  }
  return value;
}

std::vector<std::int64_t> Flags::integers(const std::string& name, std::size_t least,
                                          std::size_t most) const {
  std::vector<std::int64_t> values;
  const std::string list = text(name);
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t comma = std::min(list.find(',', begin), list.size());
    std::int64_t value = 0;
    if (!parse(list.substr(begin, comma - begin), value)) {
      refuse(name, list, "whole numbers with commas between them");
    }
    values.push_back(value);
    begin = comma + 1;
  }
  if (values.size() < least || values.size() > most) {
    refuse(name, list,
           least == most ? fmt::format("{} numbers", least)
                         : fmt::format("{} to {} numbers", least, most));
  }
  return values;
}

std::size_t Flags::choice(const std::string& name, const std::vector<std::string>& choices) const {
  if (!given(name)) return 0;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] == text(name)) return i;
  }
  refuse(name, text(name), fmt::format("{}", fmt::join(choices, ", ")));
}

}  // namespace tilewise::cli
