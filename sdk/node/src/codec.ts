/** Frames of the connector protocol as bytes, and back. Every integer is big-endian; ids are bigint. */

import { createHash } from "node:crypto";
import { ProtocolError, RequestError } from "./errors.js";

export const VERSION = "0.0.1+migrate";

/** In NOTIFY_ACK: nothing is stored yet. No message may have it as its id. */
export const NOTHING_YET = 2n ** 64n - 1n;

/** Of a frame's length field: tag and body. */
export const FRAME_BYTES_MAX = 4 * 2 ** 20;

const I64_MIN = -(2n ** 63n);
const I64_MAX = 2n ** 63n - 1n;
const SHORT_BYTES_MAX = 2 ** 16 - 1;
const MESSAGE_FIXED_BYTES = 1 + 8 + 8 + 8 + 2;

export interface Acked {
  streamId: bigint;
  pointOfReference: bigint;
}

/** What a worker sends. */
export type Received =
  | { frame: "OK"; credits: number }
  | { frame: "ERROR"; text: string }
  | { frame: "NOTIFY_ACK"; success: boolean; streamId: bigint; pointOfReference: bigint }
  | { frame: "ACK"; credits: number; acked: Acked[] }
  | { frame: "RESTART"; address: string }
  | { frame: "MIGRATE"; host: string; port: number };

/** The default id of a stream: the first 8 bytes of the SHA-256 of its name. */
export function streamIdOf(name: string): bigint {
  return createHash("sha256").update(name, "utf8").digest().readBigUInt64BE(0);
}

export function isU64(value: bigint): boolean {
  return value >= 0n && value <= NOTHING_YET;
}

function frame(tag: number, ...parts: Buffer[]): Buffer {
  const size = 1 + parts.reduce((sum, part) => sum + part.length, 0);
  const head = Buffer.alloc(5);
  head.writeUInt32BE(size, 0);
  head.writeUInt8(tag, 4);
  return Buffer.concat([head, ...parts]);
}

function short(text: string | Uint8Array): Buffer {
  const data = typeof text === "string" ? Buffer.from(text, "utf8") : Buffer.from(text);
  if (data.length > SHORT_BYTES_MAX) {
    throw new RequestError(`${data.length} bytes are over the limit of ${SHORT_BYTES_MAX}`);
  }
  const size = Buffer.alloc(2);
  size.writeUInt16BE(data.length, 0);
  return Buffer.concat([size, data]);
}

function u64(value: bigint): Buffer {
  if (!isU64(value)) throw new RequestError(`${value} is not an unsigned 64-bit number`);
  const data = Buffer.alloc(8);
  data.writeBigUInt64BE(value, 0);
  return data;
}

export function hello(cookie: string | Uint8Array, program: string, instance: string): Buffer {
  return frame(0, short(VERSION), short(cookie), short(program), short(instance));
}

/** ERROR; a long text is cut. */
export function error(text: string): Buffer {
  return frame(2, short(Buffer.from(text, "utf8").subarray(0, 1024)));
}

export function notify(streamId: bigint, name: string, pointOfReference: bigint): Buffer {
  return frame(3, u64(streamId), short(name), u64(pointOfReference));
}

export function message(streamId: bigint, id: bigint, eventTime: bigint, key: Uint8Array, payload: Uint8Array): Buffer {
  const size = MESSAGE_FIXED_BYTES + key.length + payload.length;
  if (size > FRAME_BYTES_MAX) {
    throw new RequestError(`message ${id}: ${size} bytes are over the limit of ${FRAME_BYTES_MAX}`);
  }
  if (key.length > SHORT_BYTES_MAX) throw new RequestError(`message ${id}: its key is longer than ${SHORT_BYTES_MAX}`);
  if (eventTime < I64_MIN || eventTime > I64_MAX) {
    throw new RequestError(`message ${id}: event time ${eventTime} is not a signed 64-bit number`);
  }
  const data = Buffer.allocUnsafe(4 + size);
  data.writeUInt32BE(size, 0);
  data.writeUInt8(5, 4);
  data.writeBigUInt64BE(streamId, 5);
  data.writeBigUInt64BE(id, 13);
  data.writeBigInt64BE(eventTime, 21);
  data.writeUInt16BE(key.length, 29);
  data.set(key, 31);
  data.set(payload, 31 + key.length);
  return data;
}

export function endOfStream(streamId: bigint): Buffer {
  return frame(8, u64(streamId));
}

export function migrateAck(): Buffer {
  return frame(11);
}

/** Reads fields of one frame's body, and rejects bodies that are too short or too long. */
class Body {
  private at = 0;

  constructor(
    private readonly frame: string,
    private readonly data: Buffer,
  ) {}

  private skip(size: number): number {
    const start = this.at;
    if (start + size > this.data.length) throw new ProtocolError(`${this.frame}: ${this.data.length} bytes are too few`);
    this.at += size;
    return start;
  }

  u8(): number {
    return this.data.readUInt8(this.skip(1));
  }

  u16(): number {
    return this.data.readUInt16BE(this.skip(2));
  }

  u32(): number {
    return this.data.readUInt32BE(this.skip(4));
  }

  u64(): bigint {
    return this.data.readBigUInt64BE(this.skip(8));
  }

  text(size: number): string {
    const start = this.skip(size);
    return this.data.toString("utf8", start, start + size);
  }

  get isEmpty(): boolean {
    return this.at === this.data.length;
  }

  end(): void {
    if (!this.isEmpty) throw new ProtocolError(`${this.frame}: ${this.data.length - this.at} bytes after the last field`);
  }
}

const NAMES: Record<number, Received["frame"]> = {
  1: "OK",
  2: "ERROR",
  4: "NOTIFY_ACK",
  6: "ACK",
  7: "RESTART",
  10: "MIGRATE",
};

/** Throws ProtocolError for what a worker does not send to a source, and for anything malformed. */
export function decode(tag: number, data: Buffer): Received {
  const name = NAMES[tag];
  if (name === undefined) throw new ProtocolError(`tag ${tag}: not a frame of a worker`);
  const body = new Body(name, data);
  const received = read(name, body);
  body.end();
  return received;
}

function read(name: Received["frame"], body: Body): Received {
  switch (name) {
    case "OK":
      return { frame: name, credits: body.u32() };
    case "ERROR":
      return { frame: name, text: body.text(body.u16()) };
    case "NOTIFY_ACK":
      return { frame: name, success: flag(body.u8()), streamId: body.u64(), pointOfReference: body.u64() };
    case "ACK": {
      const credits = body.u32();
      const acked = [];
      for (let left = body.u32(); left > 0; left--) acked.push({ streamId: body.u64(), pointOfReference: body.u64() });
      return { frame: name, credits, acked };
    }
    case "RESTART":
      return { frame: name, address: body.isEmpty ? "" : body.text(body.u32()) };
    case "MIGRATE":
      return { frame: name, host: body.text(body.u32()), port: body.u16() };
  }
}

function flag(value: number): boolean {
  if (value > 1) throw new ProtocolError(`NOTIFY_ACK: ${value} is neither 0 nor 1`);
  return value === 1;
}

/** Bytes in, in pieces of any size; frames out. At most one frame and the last piece are buffered. */
export class Decoder {
  private buffered: Buffer = Buffer.alloc(0);

  *feed(data: Buffer): Generator<Received> {
    this.buffered = this.buffered.length === 0 ? data : Buffer.concat([this.buffered, data]);
    while (this.buffered.length >= 4) {
      const size = this.buffered.readUInt32BE(0);
      if (size === 0) throw new ProtocolError("a frame of 0 bytes: not even a tag");
      if (size > FRAME_BYTES_MAX) throw new ProtocolError(`a frame of ${size} bytes is over the limit of ${FRAME_BYTES_MAX}`);
      if (this.buffered.length < 4 + size) return;
      const whole = this.buffered.subarray(4, 4 + size);
      this.buffered = this.buffered.subarray(4 + size);
      yield decode(whole.readUInt8(0), whole.subarray(1));
    }
  }
}
