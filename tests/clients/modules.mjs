// Resolution of the clients: from the folder that OMNI_CLIENTS names, where `npm ci` has put them, instead of a
// `node_modules` in the source tree. Loaded before the tests by `--import`; the tests of the page use it too.
import { registerHooks } from "node:module";
import { pathToFileURL } from "node:url";

const here = new URL("../", import.meta.url).href;
const installed = pathToFileURL(`${process.env.OMNI_CLIENTS}/package.json`).href;

registerHooks({
  resolve(specifier, context, next) {
    const isOurs = context.parentURL?.startsWith(here) && !specifier.startsWith(".");
    return next(specifier, isOurs ? { ...context, parentURL: installed } : context);
  },
});
