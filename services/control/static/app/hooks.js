// What views share: data that is asked for again and again, the clock, the address, the session.
import { now } from "./format.js";
import { useCallback, useEffect, useRef, useState } from "./html.js";

const OLD_SECONDS = 12;

/**
 * Ask for data now and every `seconds` (not while the tab is hidden). `key`: asked at once when it changes.
 * Returns {data, at, error, loading, old, refresh}; after an error the last data stays, and `at` says when it came.
 * `old`: the tab was hidden, the machine slept or the answer is late, so the data may no longer be so.
 */
export function usePoll(ask, seconds, key) {
  const [state, setState] = useState({ data: undefined, error: null, loading: true, key });
  const asked = useRef(ask);
  asked.current = ask;
  const again = useRef(() => {});
  useEffect(() => {
    let timer;
    let over = false;
    const abort = new AbortController();
    const tick = async () => {
      clearTimeout(timer);
      if (document.hidden) return;
      try {
        const data = await asked.current(abort.signal);
        if (!over) setState({ data, at: now(), error: null, loading: false, key });
      } catch (error) {
        if (over || error.name === "AbortError") return;
        setState((before) => ({
          data: before.key === key ? before.data : undefined,
          at: before.at,
          error,
          loading: false,
          key,
        }));
      }
      clearTimeout(timer);
      if (!over && seconds) timer = setTimeout(tick, seconds * 1000);
    };
    const shown = () => {
      if (document.hidden) return;
      setState((before) => ({ ...before })); // what is old by now says so before the answer is there
      tick();
    };
    again.current = tick;
    document.addEventListener("visibilitychange", shown);
    tick();
    return () => {
      over = true;
      clearTimeout(timer);
      abort.abort();
      document.removeEventListener("visibilitychange", shown);
    };
  }, [key, seconds]);
  const refresh = useCallback(() => again.current(), []);
  if (state.key !== key) return { data: undefined, error: null, loading: true, old: false, refresh };
  const old = Boolean(seconds && state.at && now() - state.at > Math.max(OLD_SECONDS, 4 * seconds));
  return { ...state, old, refresh };
}

/** The address behind #: {path: ["pipelines", "shop", ...], query}. */
export function useRoute() {
  const [route, setRoute] = useState(parse);
  useEffect(() => {
    const changed = () => setRoute(parse());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

function parse() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return {
    path: path.split("/").filter(Boolean).map(decoded),
    query: new URLSearchParams(query),
    whole: location.hash,
  };
}

/** What a view keeps in the query of its address: [values, change]. `start`: the values that the address leaves out. */
export function useQuery(start) {
  const read = () => {
    const { query } = parse();
    return Object.fromEntries(Object.entries(start).map(([key, value]) => [key, query.get(key) ?? value]));
  };
  const [values, setValues] = useState(read);
  useEffect(() => {
    const changed = () => setValues(read());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  const change = (some) => {
    const next = { ...values, ...some };
    const query = new URLSearchParams(Object.entries(next).filter(([key, value]) => value !== start[key])).toString();
    const [path] = location.hash.split("?");
    history.replaceState(history.state, "", `${path || "#/"}${query ? `?${query}` : ""}`);
    setValues(next);
  };
  return [values, change];
}

/** A part of an address; as it stands if its escapes are wrong, so that a mistyped address is a page that says so. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const go = (address) => {
  location.hash = address;
};

/** Give the focus to the view's heading as soon as it is there, for keyboards and screen readers. */
export function toHeading(tries = 30) {
  requestAnimationFrame(() => {
    const heading = document.querySelector("#main h1");
    if (heading) heading.focus({ preventScroll: true });
    else if (tries) setTimeout(() => toHeading(tries - 1), 100);
  });
}

export const link = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

/** Redraw every second: for ages. */
export function useClock(seconds = 1) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && tick((n) => n + 1), seconds * 1000);
    return () => clearInterval(timer);
  }, [seconds]);
}

/** The width of an element, followed by a ResizeObserver. */
export function useWidth(ref) {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (!ref.current) return undefined;
    const observer = new ResizeObserver(([entry]) => setWidth(Math.round(entry.contentRect.width)));
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return width;
}

/** The theme's name; changes redraw what draws on a canvas. */
export function useTheme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme);
  useEffect(() => {
    const observer = new MutationObserver(() => setTheme(document.documentElement.dataset.theme));
    observer.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => observer.disconnect();
  }, []);
  return theme;
}

/** A colour of the style sheet, for a canvas. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
