package lakewarden.tests;

import java.io.IOException;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;

import org.apache.paimon.fs.FileIO;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.FileStoreTableFactory;

/** A table whose store fails at its n-th call: before it did what was asked, or after it did and could not say so. */
public class PaimonFaults implements InvocationHandler {
  private FileIO real;
  private PaimonFaults counter = this;
  private long calls = 0;
  private long nth = 0;
  private boolean after = false;

  /** From now on; the count begins anew. */
  public void set(long nth, boolean after) {
    this.calls = 0;
    this.nth = nth;
    this.after = after;
  }

  public long calls() {
    return calls;
  }

  public FileStoreTable on(FileStoreTable table) {
    PaimonFaults handler = new PaimonFaults();
    handler.real = table.fileIO();
    handler.counter = this;
    ClassLoader loader = FileIO.class.getClassLoader();
    FileIO faulty = (FileIO) Proxy.newProxyInstance(loader, new Class[] {FileIO.class}, handler);
    return FileStoreTableFactory.create(faulty, table.location());
  }

  public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
    boolean store = arguments != null && arguments.length > 0 && arguments[0] instanceof org.apache.paimon.fs.Path;
    boolean fails = store && ++counter.calls == counter.nth;
    if (fails && !counter.after) {
      throw new IOException("injected before " + method.getName());
    }
    try {
      Object done = method.invoke(real, arguments);
      if (fails) {
        throw new IOException("injected after " + method.getName());
      }
      return done;
    } catch (InvocationTargetException error) {
      throw error.getCause();
    }
  }
}
