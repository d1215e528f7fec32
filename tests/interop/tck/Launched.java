package penstock.interop;

import static org.junit.platform.engine.discovery.ClassNameFilter.includeClassNamePatterns;
import static org.junit.platform.engine.discovery.DiscoverySelectors.selectPackage;

import java.io.PrintStream;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.support.descriptor.MethodSource;
import org.junit.platform.launcher.Launcher;
import org.junit.platform.launcher.LauncherDiscoveryRequest;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;

/** Runs the tests of packages by the platform of JUnit 5, and says what {@link Suite} says. */
public final class Launched {
  private Launched() {}

  /** The packages by name; their tests are the classes whose names end with {@code IT}. */
  public static void main(String[] packages) {
    Told told = new Told(System.out);
    System.setOut(System.err); // what tests print is not what is counted
    LauncherDiscoveryRequestBuilder wanted = LauncherDiscoveryRequestBuilder.request();
    for (String name : packages) {
      wanted.selectors(selectPackage(name));
    }
    LauncherDiscoveryRequest request = wanted.filters(includeClassNamePatterns(".*IT")).build();
    Launcher launcher = LauncherFactory.create();
    launcher.execute(request, told);
    told.end();
    // What a test has left open may have threads that keep the machine running.
    Runtime.getRuntime().halt(0);
  }

  private static final class Told implements TestExecutionListener {
    private final PrintStream out;
    private int ran;
    private int failed;
    private int ignored;

    private Told(PrintStream out) {
      this.out = out;
    }

    @Override
    public void executionSkipped(TestIdentifier test, String reason) {
      ignored++;
    }

    @Override
    public void executionFinished(TestIdentifier test, TestExecutionResult result) {
      ran += test.isTest() ? 1 : 0;
      result.getThrowable().ifPresent(failure -> say(test, failure));
    }

    private void say(TestIdentifier test, Throwable failure) {
      failed++;
      String name =
          test.getSource()
              .filter(MethodSource.class::isInstance)
              .map(MethodSource.class::cast)
              .map(method -> method.getClassName() + "." + method.getMethodName())
              .orElse(test.getDisplayName());
      out.printf("FAILED %s: %s%n", name, String.valueOf(failure).replaceAll("\\s+", " "));
    }

    private void end() {
      out.printf("RAN %d FAILED %d IGNORED %d%n", ran, failed, ignored);
      out.flush();
    }
  }
}
