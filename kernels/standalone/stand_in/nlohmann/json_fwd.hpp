#pragma once
namespace nlohmann {
class ordered_json;
}
