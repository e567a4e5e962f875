// Asks a front door what a service in Java would, over the stock gRPC of Java, and prints what came back as lines of NAME VALUE.
//
//     java -cp … Client HOST:PORT MODEL
//
// MODEL takes FP32 `x` [n] and answers `y` with the same values. The stubs are made from the stock Python client's own
// descriptors. Ends with an exception when a call fails that should not.

import com.google.protobuf.ByteString;
import inference.GRPCInferenceServiceGrpc;
import inference.GrpcService.InferParameter;
import inference.GrpcService.ModelInferRequest;
import inference.GrpcService.ModelInferResponse;
import inference.GrpcService.ModelMetadataRequest;
import inference.GrpcService.ModelStreamInferResponse;
import inference.GrpcService.ServerLiveRequest;
import inference.GrpcService.ServerReadyRequest;
import inference.GrpcService.SystemSharedMemoryRegisterRequest;
import inference.GrpcService.SystemSharedMemoryStatusRequest;
import inference.GrpcService.SystemSharedMemoryUnregisterRequest;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.StreamObserver;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

public final class Client {
  private static final long DEADLINE_S = 20;
  private static final int FLOAT_BYTES = 4;

  private final String model;
  private final GRPCInferenceServiceGrpc.GRPCInferenceServiceBlockingStub blocking;
  private final GRPCInferenceServiceGrpc.GRPCInferenceServiceFutureStub futures;
  private final GRPCInferenceServiceGrpc.GRPCInferenceServiceStub streaming;

  private Client(ManagedChannel channel, String model) {
    this.model = model;
    blocking = GRPCInferenceServiceGrpc.newBlockingStub(channel).withDeadlineAfter(DEADLINE_S, TimeUnit.SECONDS);
    futures = GRPCInferenceServiceGrpc.newFutureStub(channel).withDeadlineAfter(DEADLINE_S, TimeUnit.SECONDS);
    streaming = GRPCInferenceServiceGrpc.newStub(channel).withDeadlineAfter(DEADLINE_S, TimeUnit.SECONDS);
  }

  public static void main(String[] words) throws Exception {
    ManagedChannel channel = NettyChannelBuilder.forTarget(words[0]).usePlaintext().build();
    try {
      new Client(channel, words[1]).run();
    } finally {
      channel.shutdownNow().awaitTermination(DEADLINE_S, TimeUnit.SECONDS);
    }
  }

  private void run() throws Exception {
    tell("live", blocking.serverLive(ServerLiveRequest.getDefaultInstance()).getLive());
    tell("ready", blocking.serverReady(ServerReadyRequest.getDefaultInstance()).getReady());
    var metadata = blocking.modelMetadata(ModelMetadataRequest.newBuilder().setName(model).build());
    tell("input", metadata.getInputs(0).getName() + " " + metadata.getInputs(0).getDatatype());
    tell("raw", floats(blocking.modelInfer(raw(1, 2, 3)).getRawOutputContents(0)));
    tell("typed", floats(blocking.modelInfer(typed(4, 5)).getRawOutputContents(0)));
    tell("many", many(64));
    tell("stream", stream(7, 8, 9));
    throughSharedMemory(1.5f, -2.5f, 3.5f, 0f);
    tell("unknown_model", code(raw(1).toBuilder().setModelName("nobody")));
    var wrong = raw(1).toBuilder();
    wrong.getInputsBuilder(0).setDatatype("INT32");
    tell("wrong_type", code(wrong));
    tell("too_few_bytes", code(request(2).addRawInputContents(ByteString.copyFrom(new byte[FLOAT_BYTES]))));
  }

  private static void tell(String name, Object value) {
    System.out.println(name + " " + value);
  }

  private ModelInferRequest.Builder request(int count) {
    var input = ModelInferRequest.InferInputTensor.newBuilder().setName("x").setDatatype("FP32").addShape(count);
    return ModelInferRequest.newBuilder().setModelName(model).setId("from-java").addInputs(input);
  }

  private ModelInferRequest raw(float... values) {
    return request(values.length).addRawInputContents(ByteString.copyFrom(bytes(values))).build();
  }

  private ModelInferRequest typed(float... values) {
    var made = request(values.length);
    for (float value : values) made.getInputsBuilder(0).getContentsBuilder().addFp32Contents(value);
    return made.build();
  }

  private String code(ModelInferRequest.Builder request) {
    try {
      blocking.modelInfer(request.build());
      return "OK";
    } catch (StatusRuntimeException error) {
      return error.getStatus().getCode().name();
    }
  }

  private List<Float> many(int count) throws Exception {
    List<Future<ModelInferResponse>> waiting = new ArrayList<>();
    for (int number = 0; number < count; number++) waiting.add(futures.modelInfer(raw(number, number)));
    List<Float> found = new ArrayList<>();
    for (var one : waiting) found.add(floats(one.get(DEADLINE_S, TimeUnit.SECONDS).getRawOutputContents(0)).get(0));
    return found;
  }

  private List<Float> stream(float... values) throws Exception {
    List<Float> found = new ArrayList<>();
    CompletableFuture<Void> end = new CompletableFuture<>();
    var requests = streaming.modelStreamInfer(new StreamObserver<ModelStreamInferResponse>() {
      @Override
      public void onNext(ModelStreamInferResponse message) {
        if (!message.getErrorMessage().isEmpty()) end.completeExceptionally(new IllegalStateException(message.getErrorMessage()));
        else found.addAll(floats(message.getInferResponse().getRawOutputContents(0)));
      }

      @Override
      public void onError(Throwable error) {
        end.completeExceptionally(error);
      }

      @Override
      public void onCompleted() {
        end.complete(null);
      }
    });
    for (float value : values) requests.onNext(raw(value));
    requests.onCompleted();
    end.get(DEADLINE_S, TimeUnit.SECONDS);
    return found;
  }

  private void throughSharedMemory(float... values) throws Exception {
    String name = "stock-client-" + ProcessHandle.current().pid();
    Path path = Path.of("/dev/shm", name);
    int nbytes = values.length * FLOAT_BYTES;
    var create = List.of(StandardOpenOption.CREATE_NEW, StandardOpenOption.READ, StandardOpenOption.WRITE);
    try (FileChannel file = FileChannel.open(path, create.toArray(new StandardOpenOption[0]))) {
      MappedByteBuffer memory = file.map(FileChannel.MapMode.READ_WRITE, 0, 2L * nbytes);
      memory.put(bytes(values));
      blocking.systemSharedMemoryRegister(
          SystemSharedMemoryRegisterRequest.newBuilder().setName(name).setKey("/" + name).setByteSize(2L * nbytes).build());
      var asked = request(values.length);
      asked.getInputsBuilder(0).putAllParameters(inRegion(name, 0, nbytes));
      asked.addOutputs(
          ModelInferRequest.InferRequestedOutputTensor.newBuilder().setName("y").putAllParameters(inRegion(name, nbytes, nbytes)));
      tell("shared_raw_bytes", blocking.modelInfer(asked.build()).getRawOutputContents(0).size());
      byte[] found = new byte[nbytes];
      memory.get(nbytes, found);
      tell("shared", floats(ByteString.copyFrom(found)));
      blocking.systemSharedMemoryUnregister(SystemSharedMemoryUnregisterRequest.newBuilder().setName(name).build());
      var left = blocking.systemSharedMemoryStatus(SystemSharedMemoryStatusRequest.getDefaultInstance());
      tell("region_left", left.getRegionsMap().containsKey(name));
    } finally {
      Files.deleteIfExists(path);
    }
  }

  private static java.util.Map<String, InferParameter> inRegion(String region, long offset, long nbytes) {
    return java.util.Map.of(
        "shared_memory_region", InferParameter.newBuilder().setStringParam(region).build(),
        "shared_memory_offset", InferParameter.newBuilder().setInt64Param(offset).build(),
        "shared_memory_byte_size", InferParameter.newBuilder().setInt64Param(nbytes).build());
  }

  private static byte[] bytes(float... values) {
    ByteBuffer buffer = ByteBuffer.allocate(values.length * FLOAT_BYTES).order(ByteOrder.LITTLE_ENDIAN);
    for (float value : values) buffer.putFloat(value);
    return buffer.array();
  }

  private static List<Float> floats(ByteString bytes) {
    float[] values = new float[bytes.size() / FLOAT_BYTES];
    bytes.asReadOnlyByteBuffer().order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().get(values);
    List<Float> found = new ArrayList<>();
    for (float value : values) found.add(value);
    return found;
  }
}
