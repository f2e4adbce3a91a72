package lakewarden;

import java.io.IOException;
import java.util.Iterator;
import java.util.List;

import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.fs.FileIO;
import org.apache.paimon.fs.Path;
import org.apache.paimon.schema.TableSchema;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.paimon.table.FileStoreTable;

/** The colder tier's table, inside the driver's JVM. Compiled by Janino like PaimonBridge.java; the same rules hold. */
public class PaimonCold {
  private static final ObjectMapper JSON = new ObjectMapper();

  /** An empty table where the catalog puts tables of that name, with this first schema; nothing where it is there. */
  public void make(Catalog catalog, String database, String name, String schema) throws Exception {
    catalog.createDatabase(database, true);
    catalog.createTable(Identifier.create(database, name), TableSchema.fromJson(schema).toSchema(), true);
  }

  /**
   * Metadata files ([[path below the table's folder, content, whether it replaces another], ...]), in order, each at once
   * and whole. What is there stays, unless it is to be replaced.
   */
  public void put(FileStoreTable table, String told) throws Exception {
    FileIO files = table.fileIO();
    // Some tool may have left them. They are not needed, and would hide what comes before or after.
    files.deleteQuietly(new Path(table.location(), "snapshot/EARLIEST"));
    files.deleteQuietly(new Path(table.location(), "snapshot/LATEST"));
    for (Iterator each = ((List) JSON.readValue(told, List.class)).iterator(); each.hasNext(); ) {
      List file = (List) each.next();
      Path path = new Path(table.location(), (String) file.get(0));
      if (((Boolean) file.get(2)).booleanValue()) {
        files.delete(path, false);
      }
      if (!files.exists(path) && !files.tryToWriteAtomic(path, (String) file.get(1)) && !files.exists(path)) {
        throw new IOException(path + " could not be written");
      }
    }
  }
}
