// An unmodified rhea inside a WebSocket: node websocket.mjs ws://host:port/ws

import assert from 'node:assert/strict';
import { once } from 'node:events';
import rhea from 'rhea';
import WebSocket from 'ws';

const within = () => ({ signal: AbortSignal.timeout(20_000) });
const MANY = 50;
const details = rhea.websocket_connect(WebSocket)(process.argv[2], ['amqp'], {});
let failed = 0;
try {
  const connection = rhea.create_container().connect({ connection_details: details, reconnect: false });
  await once(connection, 'connection_open', within());
  const address = { address: 'inside_websocket', capabilities: ['queue'] };
  const sender = connection.open_sender({ target: address });
  await once(sender, 'sendable', within());
  const body = (n) => `${n}`.padEnd(2_000, '.');
  let accepted = 0;
  const all = new Promise((done) => sender.on('accepted', () => ++accepted === MANY && done()));
  for (let n = 0; n < MANY; n += 1) sender.send({ body: body(n) });
  await all;
  const receiver = connection.open_receiver({ source: address });
  const got = [];
  await new Promise((done) =>
    receiver.on('message', ({ message }) => got.push(message.body) === MANY && done()),
  );
  assert.deepEqual(got, Array.from({ length: MANY }, (_, n) => body(n)));
  connection.close();
  await once(connection, 'connection_close', within());
} catch (error) {
  failed = 1;
  console.log(`FAILED websocket: ${String(error.stack).replaceAll(/\s+/g, ' ').slice(0, 600)}`);
}
console.log(`RAN 1 FAILED ${failed} IGNORED 0`);
process.exit(0);
