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

/** The table in the colder tier, inside the driver's JVM. Compiled by Janino like PaimonBridge.java; the same rules apply. */
public class PaimonCold {
  private static final ObjectMapper JSON = new ObjectMapper();

  /** Create an empty table with this first schema, at the catalog's default location. Does nothing if it exists. */
  public void make(Catalog catalog, String database, String name, String schema) throws Exception {
    catalog.createDatabase(database, true);
    catalog.createTable(Identifier.create(database, name), TableSchema.fromJson(schema).toSchema(), true);
  }

  /**
   * Writes metadata files ([[path below the table's folder, content, whether it replaces another], ...]) in
   * order, each atomically. An existing file stays, unless it is to be replaced.
   */
  public void put(FileStoreTable table, String told) throws Exception {
    FileIO files = table.fileIO();
    // Another tool may have left these hint files. They are not needed, and would hide earlier or later
    // snapshots.
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
