// Bundles the page into the Python package: `npm run build`. A hash of the sources goes with it, which a test compares.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, rmSync, mkdirSync, writeFileSync, copyFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const page = join(here, "../../src/ringflow/display/page");

/** One hash over names and contents of everything the bundle depends on, in order of the names. */
function sourceHash() {
  const sources = readdirSync(join(here, "src")).map((name) => `src/${name}`);
  const hash = createHash("sha256");
  for (const name of [...sources, "build.mjs", "package.json", "package-lock.json"].sort()) {
    hash.update(`${name}\0`);
    hash.update(readFileSync(join(here, name)));
  }
  return hash.digest("hex");
}

rmSync(page, { recursive: true, force: true });
mkdirSync(page, { recursive: true });
await build({
  entryPoints: [join(here, "src/main.js")],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "ascii",
  legalComments: "inline",
  outfile: join(page, "display.js"),
});
await build({ entryPoints: [join(here, "src/style.css")], minify: true, outfile: join(page, "display.css") });
copyFileSync(join(here, "src/index.html"), join(page, "index.html"));
copyFileSync(join(here, "node_modules/three/LICENSE"), join(page, "three-LICENSE.txt"));
writeFileSync(join(page, "build.json"), `${JSON.stringify({ sources: sourceHash() })}\n`);
