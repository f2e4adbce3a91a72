package lakewarden.tests;

import java.io.IOException;
import java.lang.reflect.Method;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import java.util.Set;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local files, but for one thing: without its native library Hadoop starts the program chmod for every file it
 * makes, which took longer than everything else that is done to a small one.
 */
public class LocalFiles {
  /** For every file: path of this JVM, from now on. */
  public void use(Configuration conf) throws Exception {
    URI local = URI.create("file:///");
    FileSystem made = new LocalFileSystem(new Raw());
    made.initialize(local, conf);
    Method put = FileSystem.class.getDeclaredMethod(
        "addFileSystemForTesting", new Class[] {URI.class, Configuration.class, FileSystem.class});
    put.setAccessible(true);
    put.invoke(null, new Object[] {local, conf, made});
  }

  public static class Raw extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) throws IOException {
      Set may = EnumSet.noneOf(PosixFilePermission.class);
      PosixFilePermission[] all = PosixFilePermission.values();  // from the owner's read to the others' execute
      for (int bit = 0; bit < all.length; bit++) {
        if ((permission.toShort() >> (all.length - 1 - bit) & 1) == 1) {
          may.add(all[bit]);
        }
      }
      Files.setPosixFilePermissions(pathToFile(path).toPath(), may);
    }
  }
}
