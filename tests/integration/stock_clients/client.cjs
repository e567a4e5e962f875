// Asks a front door everything that a service in Node.js would, and prints what came back as one line of JSON.
//
//     node client.cjs HOST:PORT DESCRIPTOR_SET MODEL
//
// DESCRIPTOR_SET is a FileDescriptorSet of inference.GRPCInferenceService, the one that the stock Python client ships. MODEL
// takes FP32 `x` [n] and answers `y` with the same values. Exits with 1 and the reason when a call fails that should not.

"use strict";

const fs = require("node:fs");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, descriptors, model] = process.argv.slice(2);
const DEADLINE_MS = 20_000;
const FLOAT_BYTES = 4;

const options = { keepCase: true, longs: Number, enums: String, defaults: true, oneofs: true };
const definition = loader.loadFileDescriptorSetFromBuffer(fs.readFileSync(descriptors), options);
const { GRPCInferenceService } = grpc.loadPackageDefinition(definition).inference;
const client = new GRPCInferenceService(address, grpc.credentials.createInsecure(), {
  "grpc.max_receive_message_length": -1,
  "grpc.max_send_message_length": -1,
});

function deadline() {
  return { deadline: Date.now() + DEADLINE_MS };
}

function call(method, request) {
  return new Promise((resolve, reject) => {
    client[method](request, deadline(), (error, reply) => (error ? reject(error) : resolve(reply)));
  });
}

async function code(method, request) {
  try {
    await call(method, request);
    return "OK";
  } catch (error) {
    return grpc.status[error.code];
  }
}

function bytesOf(values) {
  const floats = Float32Array.from(values);
  return Buffer.from(floats.buffer, floats.byteOffset, floats.byteLength);
}

function floatsOf(bytes) {
  const copy = Uint8Array.from(bytes);
  return [...new Float32Array(copy.buffer)];
}

function request(values, extra = {}) {
  const inputs = [{ name: "x", datatype: "FP32", shape: [values.length] }];
  return { model_name: model, id: "from-node", inputs, ...extra };
}

function raw(values) {
  return request(values, { raw_input_contents: [bytesOf(values)] });
}

function typed(values) {
  const made = request(values);
  made.inputs[0].contents = { fp32_contents: values };
  return made;
}

// Made from descriptors, a map is a list of its entries to this library; on the wire both are the same.
function inRegion(region, offset, nbytes) {
  return [
    { key: "shared_memory_region", value: { string_param: region } },
    { key: "shared_memory_offset", value: { int64_param: offset } },
    { key: "shared_memory_byte_size", value: { int64_param: nbytes } },
  ];
}

function named(regions, name) {
  return regions.some((entry) => entry.key === name);
}

async function throughSharedMemory(values) {
  const name = `stock-client-${process.pid}`;
  const path = `/dev/shm/${name}`;
  const nbytes = values.length * FLOAT_BYTES;
  const file = fs.openSync(path, "w+", 0o600);
  try {
    fs.writeSync(file, Buffer.concat([bytesOf(values), Buffer.alloc(nbytes)]));
    const region = { name, key: `/${name}`, offset: 0, byte_size: 2 * nbytes };
    await call("SystemSharedMemoryRegister", region);
    const again = await code("SystemSharedMemoryRegister", region);
    const status = await call("SystemSharedMemoryStatus", {});
    const asked = request(values, { outputs: [{ name: "y", parameters: inRegion(name, nbytes, nbytes) }] });
    asked.inputs[0].parameters = inRegion(name, 0, nbytes);
    const reply = await call("ModelInfer", asked);
    const found = Buffer.alloc(nbytes);
    fs.readSync(file, found, 0, nbytes, nbytes);
    await call("SystemSharedMemoryUnregister", { name });
    const after = await call("SystemSharedMemoryStatus", {});
    return {
      again,
      regions: named(status.regions, name),
      left: named(after.regions, name),
      raw: reply.raw_output_contents.map((bytes) => bytes.length),
      values: floatsOf(found),
    };
  } finally {
    fs.closeSync(file);
    fs.unlinkSync(path);
  }
}

function stream(requests) {
  return new Promise((resolve, reject) => {
    const found = [];
    const both = client.ModelStreamInfer(deadline());
    both.on("data", (message) => {
      found.push(message.error_message || floatsOf(message.infer_response.raw_output_contents[0]));
    });
    both.on("error", reject);
    both.on("end", () => resolve(found));
    for (const one of requests) both.write(one);
    both.end();
  });
}

async function main() {
  const { live } = await call("ServerLive", {});
  const { ready } = await call("ServerReady", {});
  const server = await call("ServerMetadata", {});
  const metadata = await call("ModelMetadata", { name: model });
  const { config } = await call("ModelConfig", { name: model });
  const fromRaw = await call("ModelInfer", raw([1, 2, 3]));
  const fromTyped = await call("ModelInfer", typed([4, 5]));
  const many = await Promise.all([...Array(64).keys()].map((number) => call("ModelInfer", raw([number, number]))));
  const statistics = await call("ModelStatistics", { name: model });
  const found = {
    live,
    ready,
    extensions: server.extensions,
    inputs: metadata.inputs.map((tensor) => [tensor.name, tensor.datatype]),
    configured: config.name,
    id: fromRaw.id,
    raw: floatsOf(fromRaw.raw_output_contents[0]),
    typed: floatsOf(fromTyped.raw_output_contents[0]),
    many: many.map((reply) => floatsOf(reply.raw_output_contents[0])[0]),
    counted: statistics.model_stats[0].inference_count,
    stream: await stream([raw([7]), raw([8]), raw([9])]),
    shared: await throughSharedMemory([1.5, -2.5, 3.5, 0]),
    unknown_model: await code("ModelInfer", { ...raw([1]), model_name: "nobody" }),
    wrong_type: await code("ModelInfer", { ...raw([1]), inputs: [{ name: "x", datatype: "INT32", shape: [1] }] }),
    too_few_bytes: await code("ModelInfer", request([1, 2], { raw_input_contents: [Buffer.alloc(4)] })),
  };
  process.stdout.write(`${JSON.stringify(found)}\n`);
}

main()
  .then(() => client.close())
  .catch((error) => {
    process.stderr.write(`${error.stack || error}\n`);
    process.exit(1);
  });
