// The dashboard that the service has by now: a page that was open before takes it, without disturbing who works in it.

const LOOK_SECONDS = 30;
const TAKEN = "cutline-versions-taken";
const versionIn = (text) => /\/static\/([0-9a-f]+)\//.exec(text)?.[1] ?? null;

/** Look now and then, and whenever the tab is shown again, whether the service has another version than this page. */
export function followVersion() {
  const own = versionIn(document.querySelector("script[type=module]").src);
  const look = async (returned) => {
    if (document.hidden) return;
    try {
      const answer = await fetch("/", { cache: "no-cache" });
      const newest = answer.ok ? versionIn(await answer.text()) : null;
      if (newest && newest !== own && !busy(returned) && take(newest)) location.reload();
    } catch {
      // the service is away: what is shown says so
    }
  };
  setInterval(look, LOOK_SECONDS * 1000, false);
  document.addEventListener("visibilitychange", () => look(true));
}

/** Whether a reload would take something from a person: a dialog's fields, or the place in which they type just now. */
const busy = (returned) =>
  document.querySelector("dialog[open]") !== null ||
  (!returned && document.activeElement?.matches?.("main :is(input, textarea, select)"));

/**
 * Note that this version is taken; false if it was before, or if that can't be noted. Two services of different
 * versions behind one address, as while they are replaced, would otherwise make the page reload again and again.
 */
function take(version) {
  try {
    const before = sessionStorage.getItem(TAKEN)?.split(" ") ?? [];
    if (before.includes(version)) return false;
    sessionStorage.setItem(TAKEN, [...before, version].join(" "));
    return true;
  } catch {
    return false;
  }
}
