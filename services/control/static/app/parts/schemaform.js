// Fields made from the JSON Schema of pipeline.yaml: each setting with its own description, default and limits.
import { html } from "../html.js";
import { prose, sentence } from "./basics.js";
import { CheckField, NumberField, SelectField, TextField } from "./fields.js";

/** The schema behind references and "or null": {schema, nullable}. */
export function resolved(root, schema) {
  if (schema?.$ref)
    return resolved(root, {
      ...schema.$ref
        .split("/")
        .slice(1)
        .reduce((at, key) => at?.[key], root),
      ...without(schema, "$ref"),
    });
  const choices = schema?.anyOf ?? schema?.oneOf;
  if (schema?.allOf?.length === 1) return resolved(root, { ...schema.allOf[0], ...without(schema, "allOf") });
  if (choices) {
    const real = choices.filter((choice) => choice.type !== "null");
    if (real.length === 1)
      return {
        ...resolved(root, { ...real[0], ...without(schema, "anyOf", "oneOf") }),
        nullable: real.length < choices.length,
      };
    if (real.every((choice) => choice.const !== undefined || choice.enum))
      return {
        schema: { ...without(schema, "anyOf", "oneOf"), enum: real.flatMap((choice) => choice.enum ?? [choice.const]) },
        nullable: real.length < choices.length,
      };
  }
  if (schema?.const !== undefined && !schema.enum)
    return { schema: { ...schema, enum: [schema.const] }, nullable: false };
  return { schema: schema ?? {}, nullable: false };
}

const without = (object, ...keys) => Object.fromEntries(Object.entries(object).filter(([key]) => !keys.includes(key)));

const kindOf = ({ schema }) =>
  schema.enum
    ? "select"
    : schema.type === "boolean"
      ? "check"
      : ["integer", "number"].includes(schema.type)
        ? "number"
        : schema.type === "string"
          ? "text"
          : null;

/** Whether a form can show this setting. */
export const showable = (root, schema) => kindOf(resolved(root, schema)) !== null;

/** One setting. `value` undefined: not set, its default holds. */
export function SettingField({ root, name, schema, value, error, onInput }) {
  const found = resolved(root, schema);
  const kind = kindOf(found);
  const { description, default: standard, minimum, maximum } = found.schema;
  const label = name.replaceAll("_", " ").replace(/^./, (first) => first.toUpperCase());
  const hint = description ? prose(sentence(description)) : undefined;
  const usual = value === null ? null : standard; // null that is set is not the default
  const placeholder = usual === null || usual === undefined ? "none" : String(usual);
  if (kind === "check")
    return html`<${CheckField} label=${label} hint=${hint} checked=${value ?? standard ?? false} onInput=${onInput} />`;
  if (kind === "select") {
    const text = (option) => (option === null ? "null" : String(option));
    const options = [
      ["", `default: ${text(standard)}`],
      ...found.schema.enum.filter((option) => option !== null).map((option) => [String(option), String(option)]),
    ];
    const chosen = (picked) =>
      onInput(picked === "" ? undefined : found.schema.enum.find((option) => String(option) === picked));
    return html`<${SelectField} label=${label} hint=${hint} error=${error} options=${options} value=${value === undefined || value === null ? "" : String(value)} onInput=${chosen} />`;
  }
  if (kind === "number")
    return html`<${NumberField} label=${label} hint=${hint} error=${error} placeholder=${placeholder} min=${minimum} max=${maximum} step=${found.schema.type === "integer" ? 1 : "any"} value=${value} onInput=${(number) => onInput(number === null ? undefined : number)} />`;
  return html`<${TextField} label=${label} hint=${hint} error=${error} placeholder=${placeholder} value=${value} onInput=${(typed) => onInput(typed === "" ? undefined : typed)} />`;
}

/** A definition with each setting that it leaves out at its default, and the dotted paths that have their default. */
export function withDefaults(root, definition) {
  const standard = new Set();
  const filled = (schema, value, path) => {
    const { schema: found } = resolved(root, schema);
    if (!found.properties || value === null || typeof value !== "object" || Array.isArray(value)) {
      if (same(value, defaultOf(root, schema))) standard.add(path);
      return value;
    }
    const merged = { ...value };
    for (const [key, inner] of Object.entries(found.properties)) {
      if (!path && LEFT_OUT.includes(key)) continue;
      const missing = merged[key] === undefined;
      const usual = missing ? defaultOf(root, inner) : merged[key];
      if (usual !== undefined) merged[key] = filled(inner, usual, path ? `${path}.${key}` : key);
    }
    return merged;
  };
  return { definition: filled(root, definition, ""), standard };
}

const LEFT_OUT = ["workers"]; // of `cutline run` only
const same = (a, b) => a !== undefined && JSON.stringify(a) === JSON.stringify(b);

/** What a setting is where a definition leaves it out; undefined if it must be there. */
function defaultOf(root, schema) {
  const { schema: found } = resolved(root, schema);
  if (found.default !== undefined) return found.default;
  if (schema.default !== undefined) return schema.default;
  if (found.properties) {
    const inner = Object.entries(found.properties).map(([key, each]) => [key, defaultOf(root, each)]);
    return inner.some(([, value]) => value === undefined) ? undefined : Object.fromEntries(inner);
  }
  return found.type === "object" ? {} : undefined;
}
