/** Send streams of messages to Penstock: see README.md. */

export { Lost, ProtocolError, Refused, RequestError, Unavailable } from "./errors.js";
export type { Message, Messages } from "./feed.js";
export { Stream } from "./session.js";
export { Source, type SourceOptions, type StreamOptions } from "./source.js";
