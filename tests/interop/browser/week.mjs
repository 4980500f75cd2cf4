// The overview after a restart: the charts of last week, and the messages behind their counts.

import assert from "node:assert/strict";

import { end, openAt } from "./kit.mjs";

const page = await openAt("#/overview?range=7d");
const accepted = page.locator("#range-tiles div").filter({ hasText: /^accepted/ });
const choose = (range) => page.locator("#ranges").getByRole("link", { name: range, exact: true }).click();
// The tile of the range, once it shows this count.
const shows = (count, period) => accepted.filter({ hasText: new RegExp(`^acceptedlast ${period}${count}$`) }).waitFor();

// Three were accepted six days ago and one after the restart.
await shows(4, "7 days");
const points = (await page.locator("#range-plots polyline").first().getAttribute("points")).split(" ").map((point) => Number(point.split(",")[1]));
assert.equal(points.length, 7 * 24);
const floor = Math.max(...points);
const drawn = points.flatMap((y, hour) => (y < floor ? [[hour, y]] : []));
assert.deepEqual(drawn.map(([hour]) => hour), [23, 167], "two hours had mail");
assert.ok(drawn[0][1] < drawn[1][1], "three stand higher than one");

// Nobody had confirmed the clock before it moved by six days, so the records of before count as new: no
// window may end too early. A tile has what the list behind it has.
await choose("24 hours");
await shows(4, "24 hours");
await choose("90 days");
await shows(4, "90 days");

// Names that every object knows are names of organisations as others are, and of no range.
for (const name of ["constructor", "__proto__"]) {
  await page.evaluate((to) => { location.hash = to; }, `#/overview?range=7d&organisation=${name}`);
  await page.locator("#range-none").waitFor();
  assert.ok(await page.locator("#range-shown").isHidden());
  await page.evaluate((to) => { location.hash = to; }, "#/overview?range=constructor");
  await page.locator("#range-shown").waitFor();
}

// The count opens the messages that it counts, those from before the restart too.
await choose("7 days");
await shows(4, "7 days");
await accepted.getByRole("link").click();
await page.locator("#message-rows tr[data-id]").nth(3).waitFor();
assert.equal(await page.locator("#message-rows tr[data-id]").count(), 4);
await end();
