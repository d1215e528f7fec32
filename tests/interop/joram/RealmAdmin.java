package penstock.interop;

import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.util.Hashtable;
import java.util.Set;
import javax.naming.Context;
import javax.naming.NamingException;
import org.apache.qpid.jms.jndi.JmsInitialContextFactory;
import org.objectweb.jtests.jms.admin.Admin;

/**
 * What the Joram tests ask of a provider: names for its objects, which Qpid JMS has by itself, and
 * destinations that are gone after each test, for which the realm is asked over HTTP. They come
 * into being when a client first uses them.
 */
public final class RealmAdmin implements Admin {
  private static final String AMQP = System.getProperty("realm.amqp");
  private static final String HTTP = System.getProperty("realm.http");
  private static final Set<Integer> GONE = Set.of(200, 404);
  private static final Hashtable<Object, Object> NAMES = new Hashtable<>();
  private static final HttpClient CLIENT = HttpClient.newHttpClient();

  @Override
  public String getName() {
    return "penstock";
  }

  @Override
  public Context createContext() throws NamingException {
    return new JmsInitialContextFactory().getInitialContext(new Hashtable<>(NAMES));
  }

  @Override
  public void createConnectionFactory(String name) {
    NAMES.put("connectionfactory." + name, AMQP);
  }

  @Override
  public void createQueueConnectionFactory(String name) {
    createConnectionFactory(name);
  }

  @Override
  public void createTopicConnectionFactory(String name) {
    createConnectionFactory(name);
  }

  @Override
  public void createQueue(String name) {
    NAMES.put("queue." + name, name);
  }

  @Override
  public void createTopic(String name) {
    NAMES.put("topic." + name, name);
  }

  @Override
  public void deleteQueue(String name) {
    NAMES.remove("queue." + name);
    delete("queues", name);
  }

  @Override
  public void deleteTopic(String name) {
    NAMES.remove("topic." + name);
    delete("channels", name);
  }

  @Override
  public void deleteConnectionFactory(String name) {
    NAMES.remove("connectionfactory." + name);
  }

  @Override
  public void deleteQueueConnectionFactory(String name) {
    deleteConnectionFactory(name);
  }

  @Override
  public void deleteTopicConnectionFactory(String name) {
    deleteConnectionFactory(name);
  }

  private static void delete(String kind, String name) {
    String path = URLEncoder.encode(name, StandardCharsets.UTF_8);
    URI uri = URI.create(HTTP + "/api/v1/" + kind + "/" + path);
    try {
      var answer =
          CLIENT.send(HttpRequest.newBuilder(uri).DELETE().build(), BodyHandlers.ofString());
      if (!GONE.contains(answer.statusCode())) {
        throw new IllegalStateException(uri + ": " + answer.statusCode() + " " + answer.body());
      }
    } catch (IOException | InterruptedException error) {
      throw new IllegalStateException(uri.toString(), error);
    }
  }

  /** The realm runs before the tests do, and after them. */
  @Override
  public void startServer() {}

  @Override
  public void stopServer() {}

  @Override
  public void start() {}

  @Override
  public void stop() {}
}
