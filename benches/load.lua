-- What each connection sends: a new message with a key of its own, or a look at a message that
-- is there. Everything comes through the environment:
--   AUTHORIZATION  the header's values, one a line; messages have them by turns
--   BODY           a file with a message; RUN_ID is put in place of the word UNIQUE_NUMBER
--   RUN_ID         told apart from all other runs; with thread and count it makes a body unique
--   IDS            a file of message ids, one a line: these are read and nothing is sent
-- At the end one line of JSON goes to standard output.

local threads = 0

function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end

local heads, tail, ids
local prefix
local count = 0

local function content(path)
  local file = assert(io.open(path, "r"))
  local text = file:read("*a")
  file:close()
  return text
end

function init(args)
  local commons = {}
  for value in os.getenv("AUTHORIZATION"):gmatch("[^\n]+") do
    commons[#commons + 1] = "Host: " .. wrk.host .. "\r\nAuthorization: " .. value .. "\r\n"
  end
  if os.getenv("IDS") then
    ids = {}
    for id in content(os.getenv("IDS")):gmatch("%S+") do
      ids[#ids + 1] = "GET /emails/" .. id .. " HTTP/1.1\r\n" .. commons[1] .. "\r\n"
    end
    count = number * 7919
    return
  end
  local body = content(os.getenv("BODY"))
  local before, after = body:match("^(.-)UNIQUE_NUMBER(.*)$")
  prefix = string.format("%s-%02d-", os.getenv("RUN_ID"), number)
  local length = #before + #prefix + 10 + #after
  heads = {}
  for position, common in ipairs(commons) do
    heads[position] = "POST /emails HTTP/1.1\r\n" .. common ..
      "Content-Type: application/json\r\nContent-Length: " .. length .. "\r\n\r\n" .. before .. prefix
  end
  tail = after
end

function request()
  count = count + 1
  if ids then
    return ids[count % #ids + 1]
  end
  return heads[count % #heads + 1] .. string.format("%010d", count) .. tail
end

function done(summary, latency, requests)
  local errors = summary.errors
  print(string.format(
    '{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"p999_us":%d,"max_us":%d,' ..
    '"refused":%d,"broken":%d}',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    latency:percentile(99.9), latency.max, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout))
end
