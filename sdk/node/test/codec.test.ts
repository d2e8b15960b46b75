/** The bytes of docs/connector-protocol.md, "Bytes to test against". */

import assert from "node:assert/strict";
import { test } from "node:test";
import * as codec from "../src/codec.js";
import { ProtocolError, RequestError } from "../src/errors.js";

const KEY_0 = 0xbd29af3b35fbe79an;

function hex(text: string): Buffer {
  return Buffer.from(text.replaceAll(" ", ""), "hex");
}

function decoded(text: string): codec.Received[] {
  return [...new codec.Decoder().feed(hex(text))];
}

test("a stream's default id is the beginning of its name's SHA-256", () => {
  assert.equal(codec.streamIdOf("key_0"), KEY_0);
});

test("what a source sends is encoded as the page shows", () => {
  const key = Buffer.from("key_0");
  assert.deepEqual(
    codec.message(KEY_0, 1n, 0n, key, Buffer.from("hello, world!")),
    hex("0000002d 05 bd29af3b35fbe79a 0000000000000001 0000000000000000 00056b65795f30 68656c6c6f2c20776f726c6421"),
  );
  assert.deepEqual(
    codec.message(KEY_0, 2n ** 64n - 2n, -1n, Buffer.alloc(0), Buffer.alloc(0)),
    hex("0000001b 05 bd29af3b35fbe79a fffffffffffffffe ffffffffffffffff 0000"),
  );
  assert.deepEqual(codec.notify(KEY_0, "key_0", 0n), hex("00000018 03 bd29af3b35fbe79a 00056b65795f30 0000000000000000"));
  assert.deepEqual(codec.endOfStream(KEY_0), hex("00000009 08 bd29af3b35fbe79a"));
  assert.deepEqual(codec.migrateAck(), hex("00000001 0b"));
  assert.deepEqual(codec.error("no"), hex("00000005 02 00026e6f"));
  assert.deepEqual(
    codec.hello("", "prog", "instance"),
    hex("00000022 00 000d302e302e312b6d696772617465 0000 000470726f67 0008696e7374616e6365"),
  );
});

test("what a worker sends is decoded", () => {
  assert.deepEqual(decoded("00000005 01 00000064"), [{ frame: "OK", credits: 100 }]);
  assert.deepEqual(decoded("00000012 04 01 bd29af3b35fbe79a ffffffffffffffff"), [
    { frame: "NOTIFY_ACK", success: true, streamId: KEY_0, pointOfReference: codec.NOTHING_YET },
  ]);
  assert.deepEqual(decoded("00000019 06 00000032 00000001 bd29af3b35fbe79a 0000000000000032"), [
    { frame: "ACK", credits: 50, acked: [{ streamId: KEY_0, pointOfReference: 50n }] },
  ]);
  assert.deepEqual(decoded("0000000e 07 00000009 686f73743a37303030"), [{ frame: "RESTART", address: "host:7000" }]);
  assert.deepEqual(decoded("00000005 07 00000000 00000001 07"), [
    { frame: "RESTART", address: "" },
    { frame: "RESTART", address: "" },
  ]);
  assert.deepEqual(decoded("0000000b 0a 00000004 686f7374 1b58"), [{ frame: "MIGRATE", host: "host", port: 7000 }]);
});

test("frames arrive in pieces of any size", () => {
  const decoder = new codec.Decoder();
  const bytes = hex("00000005 01 00000064 00000009 06 00000001 00000000");
  const found = [...bytes].flatMap((byte) => [...decoder.feed(Buffer.from([byte]))]);
  assert.deepEqual(found, [
    { frame: "OK", credits: 100 },
    { frame: "ACK", credits: 1, acked: [] },
  ]);
});

test("malformed frames are rejected", () => {
  for (const text of ["00000000", "00ffffff", "00000002 01 00", "00000006 01 00000000 00", "00000001 63", "00000009 06 00000001 ffffffff"]) {
    assert.throws(() => decoded(text), ProtocolError, text);
  }
});

test("what does not fit is refused before it is sent", () => {
  const nothing = Buffer.alloc(0);
  assert.throws(() => codec.message(1n, 1n, 2n ** 63n, nothing, nothing), RequestError);
  assert.throws(() => codec.message(1n, 1n, 0n, nothing, Buffer.alloc(codec.FRAME_BYTES_MAX)), RequestError);
  assert.throws(() => codec.notify(-1n, "name", 0n), RequestError);
});
