// Sign-in by a password: it lasts over a reload and in other tabs, its cookie is out of reach of scripts,
// and it ends by hand. Needs what kit.mjs needs, AXE (the file of axe-core) and PASSWORD.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";

import { PHONE, end, open, origin, problems } from "./kit.mjs";

const { AXE, PASSWORD } = process.env;
const axe = await readFile(AXE, "utf8");
// The browser tells of refusals, too.
const forgetRefusals = () => problems.splice(0, problems.length, ...problems.filter((problem) => !/status of 40[13]/.test(problem)));

const page = await open(`${origin}/`, { viewport: PHONE, colorScheme: "dark" });
await page.getByText("This page is locked").waitFor();
const password = page.getByLabel("Password");
await password.waitFor();
await page.evaluate(axe);
const found = await page.evaluate(() => globalThis.axe.run(document));
assert.deepEqual(found.violations.map((one) => one.id), []);
await password.fill("a wrong password");
await page.keyboard.press("Enter");
await page.getByText("the password is wrong").waitFor();
forgetRefusals();
await password.fill(PASSWORD);
await page.keyboard.press("Enter");
await page.locator("#link.live").waitFor();

// A reload asks no more, nor does another tab; scripts cannot read the cookie.
await page.reload();
await page.locator("#link.live").waitFor();
const second = await page.context().newPage();
await second.goto(`${origin}/#/keys`);
await second.locator("#key-rows th").first().waitFor();
await second.close();
const [cookie] = await page.context().cookies();
assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.secure], [true, "Strict", false]);
assert.equal(await page.evaluate(() => document.cookie), "");

// It ends by hand.
await page.getByRole("button", { name: "Sign out" }).click();
await page.getByText("This page is locked").waitFor();
assert.deepEqual(await page.context().cookies(), []);
await end();
