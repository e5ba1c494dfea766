// The templates of all parts: Preact's `h` behind tagged template strings, so that no build step is needed.

import htm from "htm";
import { h } from "preact";

export const html = htm.bind(h);
export { Fragment, render } from "preact";
export { useCallback, useEffect, useId, useLayoutEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
