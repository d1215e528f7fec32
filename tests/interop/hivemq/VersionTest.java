package penstock.interop;

import static org.junit.Assert.assertEquals;

import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.Rule;
import org.junit.rules.Timeout;

/** What the tests of both versions share. */
public abstract class VersionTest {
  protected static final int JOBS = 20;
  protected static final long PATIENCE_S = 20;

  @Rule public final Timeout patience = Timeout.seconds(60);

  protected static int port() {
    return Integer.getInteger("realm.mqtt");
  }

  /** A topic that the tests of the other version do not have. */
  protected String topic(String name) {
    return "hivemq/" + getClass().getSimpleName() + "/" + name;
  }

  /** Such an identifier of a client. */
  protected String named(String client) {
    return topic(client).replace('/', '-');
  }

  protected static byte[] bytes(String text) {
    return text.getBytes(java.nio.charset.StandardCharsets.UTF_8);
  }

  protected static String text(byte[] payload) {
    return new String(payload, java.nio.charset.StandardCharsets.UTF_8);
  }

  protected static List<String> numbers() {
    return IntStream.range(0, JOBS).mapToObj(String::valueOf).collect(Collectors.toList());
  }

  /** What two members of a group have got, who put it into one queue, is everything, once. */
  protected static void assertAllOnce(BlockingQueue<String> got) throws InterruptedException {
    boolean[] isThere = new boolean[JOBS];
    for (int count = 0; count < JOBS; count++) {
      String text = got.poll(PATIENCE_S, TimeUnit.SECONDS);
      assertEquals("again " + text, false, isThere[Integer.parseInt(text)]);
      isThere[Integer.parseInt(text)] = true;
    }
  }
}
