package penstock.interop;

import com.sun.source.util.JavacTask;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import javax.tools.Diagnostic;
import javax.tools.DiagnosticCollector;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileObject;
import javax.tools.StandardJavaFileManager;
import javax.tools.ToolProvider;

/** Reads files of Java without their libraries and prints what is wrong with them, a line each. */
public final class Parse {
  private Parse() {}

  public static void main(String[] files) throws Exception {
    JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
    DiagnosticCollector<JavaFileObject> found = new DiagnosticCollector<>();
    List<Path> paths = Arrays.stream(files).map(Path::of).toList();
    try (StandardJavaFileManager manager = compiler.getStandardFileManager(found, null, null)) {
      JavacTask task =
          (JavacTask)
              compiler.getTask(
                  null, manager, found, null, null, manager.getJavaFileObjectsFromPaths(paths));
      task.parse().forEach(unit -> {});
    }
    for (Diagnostic<?> each : found.getDiagnostics()) {
      System.out.println(each.toString().replace('\n', ' '));
    }
  }
}
